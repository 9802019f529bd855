"""Completions of the text tasks as chat models write them, and whether a careful teacher would call each solved.

Every template and every answer is written by hand. A template says whether its final answer counts; an answer says
whether it is right. A completion is solved if both are so, whatever reads it.
"""

from minrl.dataflow import Example

THOUGHTS = {
    "Qwen3, DeepSeek R1": ("<think>\nOkay, so I need to work this out.", "</think>\n\n"),
    "EXAONE": ("<thought>\n", "\n</thought>\n\n"),
    "reasoning": ("<reasoning>\n", "\n</reasoning>\n"),
    "Magistral": ("[THINK]", "[/THINK]"),
    "Kimi": ("\u25c1think\u25b7", "\u25c1/think\u25b7"),
    "Seed": ("<seed:think>Got it.", "</seed:think>"),
    "Gemma 4": ("<|channel>thought\n", "<channel|>"),
    "Command A": ("<|START_THINKING|>", "<|END_THINKING|><|START_RESPONSE|>\n"),
    "OpenThinker": ("<|begin_of_thought|>\n\n", "\n\n<|end_of_thought|>\n\n<|begin_of_solution|>\n"),
    "Apertus": ("<|inner_prefix|>", "<|inner_suffix|>"),
    "gpt-oss": (
        "<|channel|>analysis<|message|>We need to be careful.",
        "<|end|><|start|>assistant<|channel|>final<|message|>\n",
    ),
    "gpt-oss without its tokens": ("analysisWe need to be careful.", "assistantfinal\n"),
    "s1": ("<|im_start|>think\n", "\n<|im_start|>answer\n"),
    "Granite": ("Here is my thought process:\n", "\n\nHere is my response:\n"),
}
"""How models open and close their thoughts."""

AROUND_THOUGHTS = {
    "a draft in the thoughts": ("{opens} Perhaps\n{draft}\nNo, that is wrong. {closes}{answer}", True),
    "the answer in the thoughts too": ("{opens} So\n{answer}\nYes. {closes}Here it is.\n{answer}", True),
    "the answer in the thoughts alone": ("{opens} So\n{answer}\n{closes}I hope that this helps!", False),
    "cut off while thinking": ("{opens} Perhaps\n{answer}\nWait, let me check that once mo", False),
    "opened by the prompt": ("Hmm, perhaps\n{draft}\nNo.\n{closes}{answer}", True),
    "opened by the prompt, the answer inside": ("Hmm, so\n{answer}\n{closes}That is it.", False),
}
ONLY_WHOLE = ("opened by the prompt", "Granite", "without its tokens")
"""Words that close thoughts only if they were opened are not tried behind a prompt that opened them."""

SPOKEN = {
    "alone": "{answer}",
    "white space": "\n\n  {answer}\n\n",
    "Llama 3": "## Step 1: Understand the problem\nWe look at what is given.\n\n## Step 2: Solve it\n{answer}",
    "GPT": "Let's break it down:\n\n1. **First**, note what is given.\n2. **Then** combine.\n\n---\n\n{answer}",
    "GPT with LaTeX": "We have\n\\[\nx = y + z\n\\]\nand therefore\n\n{answer}\n\nLet me know if you have questions!",
    "a base model that goes on": "{answer}\n\nQuestion: What is the capital of France?\nAnswer: Paris\n\nQuestion:",
    "a base model that repeats itself": "I will solve it. I will solve it. I will solve it.\n{answer}",
    "Chinese": "\u8ba9\u6211\u4eec\u601d\u8003\u3002\n{answer}\n\u5e0c\u671b\u6709\u5e2e\u52a9\u3002",
    "an end token as text": "{answer}<|im_end|>\n<|im_start|>user\nThanks!",
    "an empty thought": "<think>\n\n</think>\n\n{answer}",
    "the tags named before": "I write it in <answer></answer> or <group></group> tags.\n{answer}",
    "thoughts after the answer": "{answer}\n<think> I hope that is right. </think>",
}
"""Texts with one final answer outside of any thoughts."""

SEVERAL = {
    "two answers": "{draft}\n{answer}",
    "a draft that is not in thoughts": "First I thought of this:\n{draft}\nBut it is this:\n{answer}",
    "a base model that answers itself once more": "{answer}\n\nQuestion: And now?\nAnswer: {draft}",
    "each after a thought": "<think> a </think>\n{draft}\n<think> b </think>\n{answer}",
}
"""Two different answers are none."""

JARS = Example("", "", {"answer": "3 * 18 = <<3*18=54>>54\n#### 54"})
DEAR = Example("", "", {"answer": "It costs 2 * 617 = 1234.\n#### 1,234"})
MARKS = (
    *("#### {}", "####{}", "**#### {}**", "#### **{}**", "##### {}", "#### Final answer: {}", "#### The answer is {}"),
    *("`#### {}`", r"#### $\boxed{{{}}}$", r"\boxed{{{}}}", r"$$\boxed{{{}}}$$", r"\[ \boxed{{{}}} \]"),
    r"The final answer is: $\boxed{{{}}}$. I hope it is correct.",
)
UNMARKED = ("The answer is {}.", "**Answer: {}**", "### {}", "{}", r"\box{{{}}}", r"\boxed{{{}")
AMOUNTS = (
    *((JARS, text, True) for text in ("54", "54 litres", "$54", r"54 \text{ litres}", "\uff15\uff14", "108/2")),
    *((JARS, text, False) for text in ("53", "-54", "54 million", "54 or 53", "5\u2074", "", "number")),
    *((DEAR, text, True) for text in ("1234", "1,234", r"1{,}234", "1\u202f234")),
    *((DEAR, text, False) for text in ("1.234", "12,34", "1 234", "1,234,000")),
)

NINE = Example("3,5,7=9", "", {"numbers": [3, 7, 5], "target": 9})
TWELVE = Example("2,3,8=12", "", {"numbers": [8, 2, 3], "target": 12})
NINES = r"7 + 5 - 3;(7 + 5) - 3;((7)) + (5 - 3);**7 + 5 - 3**;\( 7 + 5 - 3 \);\left(7 + 5\right) - 3"
TWELVES = r"8 / 2 * 3;8 / 2 · 3;\frac{8}{2} \times 3;8 \cdot 3 \div 2;\dfrac{8}{2}\times3"
NO_NINES = "7 + 5 + 3;7 + 5;9;7 + 5 - 3 = 9;7 + 5 - 3 + 3 - 3;12 - 3;0x7 + 5 - 3;7 + 5 - 3 # sum;7 + 5 - 0_3;7 5 3"
NO_TWELVES = r"8\timesx3/2;8*3/2,1;08*3/2;8*3/2+0;8*3//2;8 ** 2;12"
SUMS = (
    *((NINE, text, True) for text in NINES.split(";")),
    *(
        (NINE, text, True)
        for text in ("7 + 5 \u2212 3", "\uff17 \uff0b \uff15 \uff0d \uff13", "```python\n7 + 5 - 3\n```")
    ),
    *((TWELVE, text, True) for text in (*TWELVES.split(";"), "8 \u00f7 2 \u00d7 3", "(8\uff0f2)\uff0a3")),
    *((TWELVE, text, False) for text in NO_TWELVES.split(";")),
    *((NINE, text, False) for text in (*NO_NINES.split(";"), "", "7 + 5 - \u00b3", "7 + 5 - 3 or 5 - 3 + 7")),
)

TOWER = Example("", "", {"pegs": "ABC", "board": ["A", "A"], "goal": "C"})
RIGHT_MOVES = (
    *(
        "1 A>B ; 2 A>C ; 1 B>C",
        "1 A>B;2 A>C;1 B>C ;",
        "1 A>B\n2 A>C\n1 B>C",
        "A>C A>B : 1 A>B ; A>C B : 2 A>C ; : 1 B>C",
    ),
    *("1 A\u2192B ; 2 A\u2192C ; 1 B\u2192C", "1 A->B\n2 A->C\n1 B->C", "1. 1 A>B\n2. 2 A>C\n3. 1 B>C"),
    *("**1 A>B** ; **2 A>C** ; **1 B>C**", "Step 1: 1 A>B\nStep 2: 2 A>C\nStep 3: 1 B>C", "- 1 A>B\n- 2 A>C\n- 1 B>C"),
    *("```\n1 A>B ; 2 A>C ; 1 B>C\n```", "\uff11 A\uff1eB \uff1b \uff12 A\uff1eC \uff1b \uff11 B\uff1eC"),
    "The small one aside: 1 A>B; the large one: 2 A>C; done: 1 B>C",
)
WRONG_MOVES = (
    *("2 A>C ; 1 A>B", "1 A>B ; 2 A>C", "1 A>C ; 2 A>B ; 1 C>B", "A>B ; A>C ; B>C", "", ";", "1 A>B 2 A>C 1 B>C"),
    *("1 A>D ; 2 A>C ; 1 D>C", "\u00b9 A>B ; \u00b2 A>C ; \u00b9 B>C", "1 A>B ; 2 A>C ; 1 B>C ; 1 C>A"),
    *("1 A>B ; 1 B>A ; " * 500 + "1 A>B ; 2 A>C ; 1 B>C", "1 A<B ; 2 A<C ; 1 B<C", "1 A>B ; skip ; 2 A>C ; 1 B>C"),
)
MOVES = (
    *((TOWER, text, True) for text in RIGHT_MOVES),
    *((TOWER, text, False) for text in WRONG_MOVES),
)

CAFE = [
    ["CAF\u00c9", "BISTRO", "DINER", "PUB"],
    ["CAN'T", "WON'T", "DON'T", "ISN'T"],
    ["20,000", "SCORE", "DOZEN", "GROSS"],
    ["ROCK 'N' ROLL", "JAZZ", "HIP-HOP", "MR. BLUES"],
]
PUZZLE = Example("", "", {"groups": [{"members": words} for words in CAFE]})


def _written(groups, word="{}", comma=", ", between="\n"):
    return between.join(f"<group>{comma.join(word.format(one) for one in group)}</group>" for group in groups)


PLAIN = _written(CAFE)
_FIRST, *_REST = CAFE
GROUPS = (
    *((text, True) for text in (PLAIN, PLAIN.lower(), _written(CAFE[::-1]), _written(CAFE, comma=",\n"))),
    *((text, True) for text in (PLAIN.replace("'", "\u2019"), PLAIN.replace("\u00c9", "E\u0301"))),
    *((_written(CAFE, word), True) for word in ("**{}**", "`{}`", "\u201c{}\u201d", "{}\u200b")),
    (_written(CAFE, comma=" "), True),
    (PLAIN.replace("PUB", "SCORE").replace("SCORE, DOZEN", "PUB, DOZEN"), False),
    (_written([*_REST, _REST[0]]), False),
    (_written([_FIRST[:3], *_REST]), False),
    ("\n".join(", ".join(group) for group in CAFE), False),
    (PLAIN.replace("CAF\u00c9", "C\u0410F\u00c9"), False),  # a Cyrillic letter
    ("", False),
)

BOARD = Example("", "", {"board": "xox4oxo89", "move": "4"})
SQUARES = (
    *((BOARD, one, True) for one in ("4", "**4**", "4.", r"$4$", "\uff14", "```\n4\n```")),
    (BOARD, r"$\boxed{4}$", False),
    *((BOARD, one, False) for one in ("8", "1", "48", "4 or 8", "", "04", "\u2074", "3 + 1", "not 4")),
)
PUBLISHED = (
    *((NINE, one, True) for one in ("7 + 5 - 3", "7+5-3", "(7 + 5) - 3", "((7)) + (5 - 3)")),
    *((TWELVE, one, True) for one in ("8 / 2 * 3", "3 / (2 / 8)")),
    *((NINE, one, False) for one in ("7 + 5 + 3", "9", "7 + 5 - 3 = 9", "+7 + 5 - 3", "7 + 5 \u2212 3", "")),
    *((TWELVE, one, False) for one in ("8 \u00f7 2 \u00d7 3", "8 // 2 * 3", "08 / 2 * 3")),
)


def _tagged(answers):
    return [(example, f"<answer> {text} </answer>", right) for example, text, right in answers]


ANSWERS = {
    "gsm8k": [
        *((example, mark.format(text), right) for mark in MARKS[::3] for example, text, right in AMOUNTS),
        *((JARS, mark.format("54"), True) for mark in MARKS),
        *((JARS, mark.format("54"), False) for mark in UNMARKED),
    ],
    "countdown": [
        *_tagged(SUMS),
        *(
            (NINE, text, False)
            for text in ("7 + 5 - 3", "<answer> 7 + 5 - 3", "<answer></answer> 7 + 5 - 3", "\\boxed{7 + 5 - 3}")
        ),
    ],
    "hanoi": [
        *_tagged(MOVES),
        *((TOWER, text, False) for text in ("1 A>B ; 2 A>C ; 1 B>C", "<answer> 1 A>B ; 2 A>C ; 1 B>C")),
    ],
    "connections": [(PUZZLE, text, right) for text, right in GROUPS],
    "tictactoe": [*_tagged(SQUARES), (BOARD, "<answer> 4", False), (BOARD, "4 </answer>", False)],
    "countdown_3to4": [*_tagged(PUBLISHED), (NINE, "7 + 5 - 3", False), (NINE, "<answer> 7 + 5 - 3", False)],
}
"""For each task (example, final answer, whether it is right)."""

DRAFTS = {
    "gsm8k": "#### 77",
    "countdown": "<answer> 1 + 1 </answer>",
    "hanoi": "<answer> 1 A>B </answer>",
    "connections": _written([list(words) for words in zip(*CAFE, strict=True)]),
    "tictactoe": "<answer> 8 </answer>",
    "countdown_3to4": "<answer> 1 + 1 </answer>",
}


def completions(task):
    """(example, completion, whether it is solved) for each template with some answers, and each answer spoken."""
    answers, draft = ANSWERS[task], DRAFTS[task]
    right = [answer for answer in answers if answer[2]]
    for form, (opens, closes) in THOUGHTS.items():
        for name, (template, counts) in AROUND_THOUGHTS.items():
            if name.startswith(ONLY_WHOLE[0]) and form.endswith(ONLY_WHOLE[1:]):
                continue
            for example, answer, is_right in answers[:: max(1, len(answers) // 8)]:
                text = template.format(opens=opens, closes=closes, draft=draft, answer=answer)
                yield example, text, counts and is_right
    step = max(1, len(answers) // 40)
    for number, template in enumerate(SPOKEN.values()):
        for example, answer, is_right in answers[number % step :: step]:
            yield example, template.replace("{answer}", answer), is_right
    for template in SEVERAL.values():
        for example, answer, _ in right[::step]:
            yield example, template.replace("{answer}", answer).replace("{draft}", draft), False
