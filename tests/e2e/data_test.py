#!/usr/bin/python3
"""Jobs on data that are not one local text: images, texts in an object store, padded, packed and bad documents."""
import json
import os
import random
import re
import struct
import sys
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fixture import case, check, main, same_losses, write_text  # noqa: E402

SIDE, IMAGES = 8, 240
IMAGE_MODEL = f"""{{"model_type": "resnet", "image_size": {SIDE}, "num_channels": 3, "num_labels": 2,
 "layer_type": "basic", "small_stem": true, "embedding_size": 8, "depths": [1, 1], "hidden_sizes": [8, 16]}}"""

ENCODER = """{"model_type": "bert", "vocab_size": 260, "hidden_size": 32, "num_hidden_layers": 2,
 "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 32, "pad_token_id": 256,
 "cls_token_id": 257, "sep_token_id": 258, "mask_token_id": 259}"""


class ObjectStore:
    """S3's HTTP for reading: an object or a range of it, and lists by prefix. Signatures are not checked."""

    def __init__(self, objects):
        self.ranges = 0  # that were read
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self, status, body, headers=()):
                self.send_response(status)
                for name, value in (("Content-Length", str(len(body))), *headers):
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def do_GET(self):
                url = urlsplit(self.path)
                query = parse_qs(url.query)
                if "list-type" in query:
                    prefix = query.get("prefix", [""])[0]
                    rows = [f'<Contents><Key>{key}</Key><ETag>"{zlib.crc32(body)}"</ETag>'
                            f"<Size>{len(body)}</Size></Contents>"
                            for key, body in sorted(objects.items()) if key.startswith(prefix)]
                    self.answer(200, f"<ListBucketResult>{''.join(rows)}</ListBucketResult>".encode())
                    return
                body = objects.get(url.path.split("/", 2)[2])
                if body is None:
                    self.answer(404, b"")
                    return
                tag = ("ETag", f'"{zlib.crc32(body)}"')
                wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
                if wanted is None:
                    self.answer(200, body, [tag])
                    return
                begin, end = int(wanted[1]), min(int(wanted[2]), len(body) - 1)
                store.ranges += 1
                self.answer(206, body[begin:end + 1],
                            [tag, ("Content-Range", f"bytes {begin}-{end}/{len(body)}")])

            do_HEAD = do_GET

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"


def write_image(path, rng, red):
    """A PNG file of noise that is red or blue."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    def pixel():
        strong, weak = rng.randrange(160, 256), rng.randrange(96)
        return bytes((strong, rng.randrange(256), weak) if red else (weak, rng.randrange(256), strong))

    rows = b"".join(b"\0" + b"".join(pixel() for _ in range(SIDE)) for _ in range(SIDE))
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)) +
                   chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


@case
def trains_on_a_folder_of_images(fixture):
    """A job on a folder of PNG files by class: `validate` describes it, the job learns the classes, and the
    export names them"""
    rng = random.Random(1)
    folder = os.path.join(fixture.folder, "images")
    for name in ("blue", "red"):
        os.makedirs(os.path.join(folder, name))
        for i in range(IMAGES // 2):
            write_image(os.path.join(folder, name, f"{i}.png"), rng, name == "red")
    with open(os.path.join(fixture.folder, "model.json"), "w", encoding="ascii") as out:
        out.write(IMAGE_MODEL)
    fixture.starts(workers=2, servers=1)
    path = fixture.job_file("images", data__path=folder, data__format="image_folder", data__image_size=SIDE,
                            data__sequence_length=1, data__validation_fraction=0.25,
                            model__config_path=os.path.join(fixture.folder, "model.json"),
                            model__hidden=None, model__layers=None, model__heads=None,
                            inner__batch_sequences=16,
                            outer__steps_per_round=16, schedule__train_tokens=4_096,
                            schedule__validation_sequences=0)
    code, out, errors = fixture.atoll("validate", path)
    check((code, out) == (0, f"{path}: valid; not looked at: {IMAGES - 64} images of {folder}\n"), out)
    check(f"data: {IMAGES} images of 2 classes" in errors, errors)
    done = fixture.finishes(fixture.json("submit", path)["job"])
    first, last = (done["summary"][k] for k in ("first_validation_loss", "validation_loss"))
    check(first > 0.5, f"an untrained model has a loss near ln 2, not {first}")
    check(last < 0.3, f"the validation loss went from {first} to {last} only")
    exported = os.path.join(fixture.folder, "exported")
    fixture.atoll("export", done["summary"]["job"], "--to", exported)
    image = os.path.join(folder, "red", "0.png")
    found = fixture.json("predict", exported, image)
    check(found["images"][0]["candidates"][0]["text"] == "red", f"a red image is predicted as {found}")


@case
def trains_on_texts_in_an_object_store(fixture):
    """A job whose texts are objects of a bucket has the losses of one on the same text here; a machine without
    the bucket's key says what it did not look at"""
    with open(fixture.text, "rb") as file:
        text = file.read()
    store = ObjectStore({"corpus/a.txt": text[:70_000], "corpus/b.txt": text[70_000:], "other.txt": b"x" * 999})
    fixture.coordinator()
    fixture.server("ps1", memory="64MiB")
    fixture.worker("w1", wrapper=[
        "env", "AWS_ACCESS_KEY_ID=key", "AWS_SECRET_ACCESS_KEY=secret", "AWS_REGION=us-east-1",
        f"AWS_ENDPOINT_URL={store.url}", "ATOLL_DATA_CACHE=" + os.path.join(fixture.folder, "cache")])
    fixture.attached(2)
    address = "s3://bucket/corpus/*.txt"
    paths = {"here": fixture.text, "there": address}
    jobs = {name: fixture.job_file(name, data__path=path, outer__min_islands=1, outer__overlap="none",
                                   schedule__train_tokens=30_720)
            for name, path in paths.items()}
    code, out, errors = fixture.atoll("validate", jobs["there"])
    check((code, out) == (0, f"{jobs['there']}: valid; not looked at: {address}\n"), out + errors)
    done = {name: fixture.finishes(fixture.json("submit", path)["job"]) for name, path in jobs.items()}
    same_losses(done["here"], done["there"])
    check(store.ranges > 1, f"{store.ranges} ranges were read of the bucket")


@case
def trains_an_encoder_on_padded_documents(fixture):
    """A job whose sequences are lines of unlike length, each with padding, lowers its loss; `validate` counts the
    lines that are cut, and refuses such data for a decoder"""
    rng = random.Random(1)
    lines = [" ".join(["the waves of the sea"] * 4)[:rng.randrange(1, 60)] for _ in range(1_000)]
    text, model = (os.path.join(fixture.folder, name) for name in ("lines.txt", "bert.json"))
    with open(text, "w", encoding="ascii", newline="") as out:
        out.write("\r\n".join(lines))
    with open(model, "w", encoding="ascii") as out:
        out.write(ENCODER)
    fixture.coordinator()
    fixture.server("ps1", memory="64MiB")
    for name in ("w1", "w2"):
        fixture.worker(name, wrapper=["env", "ATOLL_DATA_CACHE=" + os.path.join(fixture.folder, "cache")])
    fixture.attached(3)
    decoder = fixture.job_file("decoder", data__path=text, data__pad_documents=True)
    code, _, errors = fixture.atoll("validate", decoder, check=False)
    check(code != 0 and f"{decoder}:" in errors and "data.pad_documents = true" in errors, errors)
    path = fixture.job_file("encoder", data__path=text, data__pad_documents=True, data__validation_fraction=0.2,
                            model__config_path=model, model__hidden=None, model__layers=None, model__heads=None,
                            schedule__train_tokens=120_000, schedule__validation_sequences=0)
    errors = fixture.atoll("validate", path)[2]
    cut = sum(len(line) > 30 for line in lines)
    check(f"800 documents and 200 held out, {cut} of them cut at 30 tokens" in errors, errors)
    done = fixture.finishes(fixture.json("submit", path)["job"])
    first, last = (done["summary"][k] for k in ("first_validation_loss", "validation_loss"))
    check(abs(first - 5.56) < 0.5, f"an untrained model has a loss near ln 260, not {first}")
    check(last < 3, f"the validation loss went from {first} to {last} only")
    index = [os.path.getsize(os.path.join(folder, file)) for folder, _, files in
             os.walk(os.path.join(fixture.folder, "cache")) for file in files if file == "documents.bin"]
    check(index == [8_000], f"the workers of a machine share an index of 8 bytes a document, not {index}")


@case
def trains_a_decoder_on_packed_documents(fixture):
    """Lines of JSONL are packed without a setting, as `validate` counts, and islands lower the loss"""
    rng = random.Random(1)
    lines = [" ".join(["the waves of the sea"] * 9)[:rng.randrange(1, 150)] for _ in range(1_000)]
    path = os.path.join(fixture.folder, "lines.jsonl")
    with open(path, "w", encoding="ascii") as out:
        out.writelines(json.dumps({"text": line}) + "\n" for line in lines)
    fixture.coordinator()
    fixture.server("ps1", memory="64MiB")
    for name in ("w1", "w2"):
        fixture.worker(name, wrapper=["env", "ATOLL_DATA_CACHE=" + os.path.join(fixture.folder, "cache")])
    fixture.attached(3)
    settings = {"data__path": path, "data__validation_fraction": 0.2}
    wrong = fixture.job_file("wrong", data__documents="mask", **settings)
    code, _, errors = fixture.atoll("validate", wrong, check=False)
    check(code != 0 and f"{wrong}:" in errors and 'data.documents = "mask"' in errors, errors)
    job = fixture.job_file("decoder", data__format="jsonl", schedule__train_tokens=120_000,
                           schedule__validation_sequences=0, **settings)
    errors = fixture.atoll("validate", job)[2]
    found = re.search(r"([\d,]+) documents in ([\d,]+) sequences and ([\d,]+) held out", errors)
    check(found is not None, errors)
    documents, *sequences = (int(number.replace(",", "")) for number in found.groups())
    tokens = sum(len(line) + 1 for line in lines)
    check(documents == 1_000 and sum(sequences) * 33 < tokens * 1.06, errors)
    done = fixture.finishes(fixture.json("submit", job)["job"])
    first, last = (done["summary"][k] for k in ("first_validation_loss", "validation_loss"))
    check(last < 2 < first, f"the validation loss went from {first} to {last}")


def forget(folder, token):
    """Makes a token's embedding 0, whose norm has no finite gradient in float32 where epsilon is as good as none."""
    path = os.path.join(folder, "model.safetensors")
    with open(path, "r+b") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        table = json.loads(file.read(size))["model.embed_tokens.weight"]
        width = table["shape"][1] * 4
        file.seek(8 + size + table["data_offsets"][0] + token * width)
        file.write(bytes(width))
    config = os.path.join(folder, "config.json")
    with open(config, encoding="utf-8") as file:
        fields = json.load(file)
    fields["rms_norm_eps"] = 1e-30
    with open(config, "w", encoding="utf-8") as file:
        json.dump(fields, file)


@case
def one_bad_document_of_100_000_costs_its_steps_alone(fixture):
    """A document, of a whole sequence, whose gradient is not finite: the step that has it is tried twice and skipped, once, with its
    positions in the logs of worker and ledger, and the loss is that of a job on data without it"""
    rng = random.Random(1)
    lines = [rng.choice(["the tide", "a red boat", "low water"]) for _ in range(100_000)]
    fixture.starts(workers=1, servers=1)
    batch, length, losses = 16, 64, []
    alone = {"data__format": "jsonl", "data__sequence_length": length, "data__validation_fraction": 0.01,
             "outer__min_islands": 1, "outer__steps_per_round": 200, "outer__optimizer": "sgd", "outer__clip_norm": 0}
    for name, bad in (("without", "the tide" * 8), ("with", "~" * 64)):
        path = os.path.join(fixture.folder, name + ".jsonl")
        with open(path, "w", encoding="ascii") as out:
            out.writelines(json.dumps({"text": bad if i == 40_000 else line}) + "\n" for i, line in enumerate(lines))
        if not losses:
            base = os.path.join(fixture.folder, "base")
            job = fixture.submits("base", data__path=path, schedule__train_tokens=50_000, **alone)
            fixture.finishes(job)
            fixture.atoll("export", job, "--to", base)
            forget(base, ord("~"))
        # Most of the sequences of one epoch.
        job = fixture.submits(name, data__path=path, model__initial_weights_path=base, model__hidden=None,
                              model__layers=None, model__heads=None, inner__batch_sequences=batch,
                              inner__learning_rate=1e-4, schedule__train_tokens=15_000 * length, **alone)
        summary = fixture.finishes(job)["summary"]
        losses.append(summary["validation_loss"])
        check(summary["skipped_sequences"] == (batch if name == "with" else 0), f"{name}: {summary}")
        log = fixture.logs(job)
        steps = re.findall(r"skipped step (\d+), on (sequences \d+ to \d+): it is not finite again", log)
        ledger = re.findall(r"has skipped (sequences \d+ to \d+); (\d+) of the job's", log)
        check(len(steps) == len(ledger) == (1 if name == "with" else 0), f"{name}: {steps}, {ledger}")
        check([place for _, place in steps] == [place for place, _ in ledger], f"{steps} are {ledger} in the ledger")
    check(abs(losses[1] / losses[0] - 1) < 0.01, f"losses without and with the bad document: {losses}")


if __name__ == "__main__":
    main("data")
