#!/usr/bin/env python3
"""conversations.py COUNT [--stripped]: conversations as templates get them, a JSON object of variables a line; the same ones
every time. With --stripped no content begins or ends with white space: npm's strip() knows no characters but that."""
import json
import random
import sys

WORDS = """island sea land water round ship Paris 42 1.5 naïve façade Straße 東京 привет 🙂 can't "quoted" it's <b>bold</b>
back\\slash {{braces}} {%percent%} #hash a|b tab\there end. What? Yes! no, 100% C++ x=y [1,2] {"k": "v"}""".split()
ENDS = ["", "", "", "", " ", "\n", "  \n", "\n\n", "\t"]
TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "description": "Name of the city"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            "days": {"type": "integer"}}, "required": ["city"]}}},
    {"type": "function", "function": {
        "name": "add", "description": "Adds numbers, \"all\" of them: é.",
        "parameters": {"type": "object", "properties": {
            "numbers": {"type": "array", "items": {"type": "number"}}, "exact": {"type": "boolean"}}}}}]
SPECIAL = {
    "bos_token": "<s>", "eos_token": "</s>"}


def text(rng):
    lines = [" ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 9))) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
    made = rng.choice(ENDS) + rng.choice(["\n", "\n\n"]).join(lines) + rng.choice(ENDS)
    return made.strip() if "--stripped" in sys.argv else made


def calls(rng):
    made = []
    for _ in range(rng.choice([1, 1, 2])):
        name, arguments = rng.choice([
            ("get_weather", {"city": rng.choice(WORDS), "days": rng.randint(-1, 5)}),
            ("add", {"numbers": [rng.randint(0, 9), 0.5, 0.125, -3], "exact": rng.random() < 0.5, "note": None}),
            ("get_weather", {})])
        made.append({"id": f"call{rng.randint(10000, 99999)}"[:9], "type": "function",
                     "function": {"name": name, "arguments": arguments}})
    return made


def conversation(rng):
    messages, kind = [], rng.random()
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": text(rng)})
    tools = kind < 0.3
    for _ in range(rng.choice([1, 1, 2, 3])):
        messages.append({"role": "user", "content": text(rng)})
        if tools and rng.random() < 0.7:
            made = calls(rng)
            messages.append({"role": "assistant", "content": rng.choice([None, "", text(rng)]), "tool_calls": made})
            for call in made:
                messages.append({"role": "tool", "content": json.dumps({"result": rng.randint(0, 99)}),
                                 "name": call["function"]["name"], "tool_call_id": call["id"]})
        answer = text(rng)
        if rng.random() < 0.15:
            answer = "<think>\n" + text(rng) + "\n</think>\n\n" + answer
        messages.append({"role": "assistant", "content": answer})
    if rng.random() < 0.05:
        messages.insert(rng.randint(0, len(messages)), {"role": rng.choice(["developer", "user", "assistant", "system"]), "content": text(rng)})
    if rng.random() < 0.3:
        messages = messages[:rng.randint(1, len(messages))]
    variables = {"messages": messages, "add_generation_prompt": rng.random() < 0.5, **SPECIAL}
    if tools and rng.random() < 0.8:
        variables["tools"] = TOOLS[:rng.randint(1, 2)]
    if rng.random() < 0.1:
        variables["enable_thinking"] = rng.random() < 0.5
    return variables


def main():
    rng = random.Random(55)
    for _ in range(int(sys.argv[1])):
        print(json.dumps(conversation(rng), ensure_ascii=False))


main()
