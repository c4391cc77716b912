#!/usr/bin/env python3
"""Solves small pipeline scheduling problems exactly and prints the table in exact_optima_test.cc.

Needs Debian's python3-scipy (milp is HiGHS); run by hand: /usr/bin/python3 make_exact_optima.py

Micro-batches are equal, so one may number them such that every stage runs its F, its B and its W
each in order: the k-th B of a stage then belongs to the k-th F, whatever the schedule. Binary
variables order F against B, F against W and B against W on each stage. Memory is `slots` forwards,
released when W ends (when B ends with W = 0): the k-th F starts after the (k - slots)-th release.
Links have latency only.
"""
import random

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp


def solve(stages, m, c, slots):
    """Least makespan of stages [(F, B, W)], m micro-batches, latency c, slots per stage."""
    p = len(stages)
    kinds = [3 if stage[2] > 0 else 2 for stage in stages]
    index = {}
    for s in range(p):
        for kind in range(kinds[s]):
            for k in range(m):
                index[s, kind, k] = len(index)
    makespan = len(index)
    pairs = [(s, a, i, b, j) for s in range(p) for a in range(kinds[s])
             for b in range(a + 1, kinds[s]) for i in range(m) for j in range(m)
             # An earlier kind of the same or an earlier micro-batch always goes first.
             if i > j]
    columns = makespan + 1 + len(pairs)
    big = sum(sum(stage) for stage in stages) * m + 2 * c * p * m
    rows, low = [], []

    def at_least(terms, bound):
        row = np.zeros(columns)
        for column, factor in terms:
            row[column] += factor
        rows.append(row)
        low.append(bound)

    def after(first, second, gap):  # second starts at least gap after first starts
        at_least([(index[second], 1), (index[first], -1)], gap)

    for s, times in enumerate(stages):
        last = kinds[s] - 1
        for k in range(m):
            for kind in range(kinds[s]):
                if k > 0:
                    after((s, kind, k - 1), (s, kind, k), times[kind])
                if kind > 0:
                    after((s, kind - 1, k), (s, kind, k), times[kind - 1])
            if s + 1 < p:
                after((s, 0, k), (s + 1, 0, k), times[0] + c)
                after((s + 1, 1, k), (s, 1, k), stages[s + 1][1] + c)
            if k >= slots:
                after((s, last, k - slots), (s, 0, k), times[last])
        at_least([(makespan, 1), (index[s, last, m - 1], -1)], times[last])
    for n, (s, a, i, b, j) in enumerate(pairs):
        binary = makespan + 1 + n  # 1: (a, i) before (b, j)
        at_least([(index[s, b, j], 1), (index[s, a, i], -1), (binary, -big)],
                 stages[s][a] - big)
        at_least([(index[s, a, i], 1), (index[s, b, j], -1), (binary, big)], stages[s][b])
    cost = np.zeros(columns)
    cost[makespan] = 1
    integrality = np.zeros(columns)
    integrality[makespan + 1:] = 1
    upper = np.full(columns, np.inf)
    upper[makespan + 1:] = 1
    result = milp(cost, integrality=integrality, bounds=Bounds(0, upper),
                  constraints=LinearConstraint(np.array(rows), np.array(low), np.inf),
                  options={"time_limit": 60, "mip_rel_gap": 0})
    return round(result.fun) if result.status == 0 else None


def main():
    rng = random.Random(1)
    for _ in range(40):
        p = rng.choice([2, 3, 4])
        m = rng.choice([4, 5, 6] if p < 4 else [4, 5])
        split = rng.random() < 0.5
        uniform = rng.random() < 0.4
        stages = []
        for _ in range(p):
            forward = rng.randint(5, 15)
            stages.append((forward, rng.randint(5, 20), rng.randint(3, 12) if split else 0))
        if uniform:
            stages = [stages[0]] * p
        c = rng.choice([0, 1, 4, 12, 25])
        slots = rng.choice([p, p, p + 1, 2 * p, m])
        best = solve(stages, m, c, slots)
        if best is not None:
            times = ", ".join("{%d, %d, %d}" % stage for stage in stages)
            print("    {{%s}, %d, %d, %d, %d}," % (times, m, c, slots, best), flush=True)


if __name__ == "__main__":
    main()
