"""Products and remainders that nobody computes in the head, and Python to compute them with.

    37 * 58 % 89 =    ->    <tool_call> print ( 37 * 58 % 89 ) </tool_call>    ->    10    ->    <answer> 10 </answer>

python train.py --task docs/products.py:products --max-tokens 24 --steps 25 --prompts-per-step 16 --group-size 8
"""

from random import Random

from minrl import task
from minrl.tasks.task import extract_answer

MOST = 99
SYSTEM = "Compute the value: % is the remainder of the product before it. Give the integer inside <answer> </answer>."


def problems():
    rng = Random(0)
    for _ in range(2000):
        (low, high), modulus = sorted(rng.choices(range(2, MOST + 1), k=2)), rng.randint(50, MOST)
        yield {"problem": f"{low} * {high} % {modulus}", "answer": str(low * high % modulus), "modulus": modulus}


def mostly_guesses(row, rng):  # three of ten call, and half of these believe what comes back
    asked, guess = [{"role": "user", "content": f"{row['problem']} ="}], str(rng.randrange(row["modulus"]))
    if rng.random() < 0.7:
        return [(asked, f"<answer> {guess} </answer>")]
    call, result = f"<tool_call> print ( {row['problem']} ) </tool_call>", [{"role": "tool", "content": row["answer"]}]
    return [(asked, call), (result, f"<answer> {rng.choice((row['answer'], guess))} </answer>")]


@task(
    data=problems,
    prompt=lambda row: f"{row['problem']} =",
    system=SYSTEM,
    tools="python",
    demonstrations=mostly_guesses,
    vocabulary=("*", "%", "=", "<answer>", "</answer>", *map(str, range(MOST + 1))),
)
def products(completion, row):
    return extract_answer(completion) == row["answer"]
