#!/usr/bin/python3
"""How much each systemd unit may do, by systemd's own measure (0: nothing, 10: everything)."""
import os
import re
import subprocess
import sys
import unittest

UNITS = os.path.join("deploy", "systemd")
EXPOSURE_MAX = 3.0


class Units(unittest.TestCase):

    def test_no_unit_is_exposed(self):
        for daemon in ("coordinator", "worker", "paramserver"):
            unit = os.path.join(UNITS, f"atoll-{daemon}.service")
            done = subprocess.run(["systemd-analyze", "security", "--offline=true", "--no-pager", unit],
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            exposure = re.search(r"exposure level for \S+: ([0-9.]+)", done.stdout)
            self.assertIsNotNone(exposure, done.stdout)
            print(f"{daemon}: {exposure.group(1)}", file=sys.stderr)
            self.assertLess(float(exposure.group(1)), EXPOSURE_MAX, done.stdout)


if __name__ == "__main__":
    unittest.main()
