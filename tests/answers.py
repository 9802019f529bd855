r"""What completions of the text tasks are paid: right answers in the notations that people write, and wrong ones beside
them, texts that attack their readers too.

`pays` takes a task, a row of its data, the lowest and the highest reward, and completions. `test_answers.py` plays all.
"""

import re

from tests.hostile.cases import TURNS, Case

ANSWERS: list[Case] = []


def pays(task, row, least, most, *completions, **options):
    """Add completions that are paid from `least` to `most`, with these options of the task."""
    ANSWERS.extend(Case("answer", text[:60], task, row, text, most, least, options) for text in completions)


def right(task, row, *completions, **options):
    pays(task, row, 1.0, 1.0, *completions, **options)


def wrong(task, row, *completions, **options):
    """In the form that is asked for or not: countdown and math pay 0.1 for the form."""
    pays(task, row, 0.0, 0.1 if task in ("countdown", "math", "countdown_3to4") else 0.0, *completions, **options)


def filled(forms, *answers):
    return [form.replace("ANSWER", answer) for form in forms for answer in answers]


def tagged(*answers):
    return filled(["<answer> ANSWER </answer>"], *answers)


# GSM8K

JARS = {"answer": "3 * 18 = <<3*18=54>>54\n#### 54"}
DEAR = {"answer": "It costs 2 * 617 = 1234.\n#### 1,234"}
MARKS = [
    *("#### ANSWER", "####ANSWER", "**#### ANSWER**", "#### **ANSWER**", "##### ANSWER", "`#### ANSWER`"),
    *("#### Final answer: ANSWER", "#### The answer is ANSWER", r"#### $\boxed{ANSWER}$", r"\[ \boxed{ANSWER} \]"),
    r"The final answer is: $\boxed{ANSWER}$. I hope it is correct.",
]
UNMARKED = ["The answer is 54.", "**Answer: 54**", "### 54", "54", r"\box{54}", r"\boxed{54"]
right("gsm8k", JARS, *filled(MARKS, "54"), *filled(MARKS[::10], "$54", r"54 \text{ litres}", "\uff15\uff14", "108/2"))
wrong("gsm8k", JARS, *UNMARKED, *filled(MARKS[::10], "53", "-54", "54 million", "54 or 53", "5\u2074", "", "number"))
right("gsm8k", DEAR, *filled(MARKS[::10], "1234", "1,234", r"1{,}234", "1\u202f234"))
wrong("gsm8k", DEAR, *filled(MARKS[::10], "1.234", "12,34", "1 234", "1,234,000"))
wrong("gsm8k", JARS, "#### 55 <think> hm </think> #### 54", "#### 5<think> hm </think>4", "#### 54 millionths")
right("gsm8k", JARS, r"\boxed{N = 54}", "<think> #### 55 </think> #### 54")
for correct, form, lenient, texts in (
    (1, 1, 1, ["18 * 3 = 54\n#### 54", r"\boxed{54}, that is #### 54", "#### 54.", "#### Step 1\n18 * 3\n#### 54"]),
    (1, 1, 1, [r"\boxed{53}, no: \boxed{54}"]),  # the last box
    (1, 0, 1, ["#### 54 litres", r"\boxed{x = 54}"]),
    (0, 0, 1, ["the answer is 54", "#### 53\n#### 54", r"\boxed{53} #### 54"]),
    (0, 1, 0, ["#### 55"]),
    (0, 0, 0, ["####", "#### 54 or 53"]),
):
    value = (4 * correct + 2 * form + lenient) / 7  # of the three parts, of which `correct` alone is paid by default
    pays("gsm8k", JARS, value, value, *texts, correct_weight=4.0, format_weight=2.0, lenient_weight=1.0)

# Countdown, and as published

NINE = {"numbers": [3, 7, 5], "target": 9}
TWELVE = {"numbers": [8, 2, 3], "target": 12}
NINES = ["7 + 5 - 3", "(7 + 5) - 3", "((7)) + (5 - 3)", "7+5-3"]
NO_NINES = [
    *("", "7 + 5 + 3", "7 + 5", "7 + 5 - 3 = 9", "7 + 5 - 3 + 3 - 3", "12 - 3", "7 5 3", "7 + 5 - 0_3"),
    *("0x7 + 5 - 3", "7 + 5 - \u00b3", "7 + 5 - 3 or 5 - 3 + 7", "9**9**9", "7 // 5 + 3", "+7 + 5 - 3"),
    *("7 / (5 - 5) + 3", "(x := 7) + 5 - 3", "True + 7", "7(5) - 3", f"{'(' * 10_000}7 + 5 - 3{')' * 10_000}"),
]
ELSEWHERE = ["7 + 5 - 3", "<answer> 7 + 5 - 3", "<answer></answer> 7 + 5 - 3"]
right("countdown", NINE, *tagged(*NINES, "-3 + 7 + 5", "**7 + 5 - 3**", r"\( 7 + 5 - 3 \)", r"\left(7 + 5\right) - 3"))
right("countdown", NINE, *tagged("7 + 5 \u2212 3", "\uff17 \uff0b \uff15 \uff0d \uff13", "```python\n7 + 5 - 3\n```"))
wrong("countdown", NINE, *tagged(*NO_NINES, f"{'-' * 190}3"), *ELSEWHERE, r"\boxed{7 + 5 - 3}")
pays("countdown", NINE, 0.0, 0.0, *tagged(*NO_NINES[7:], "7 + 5", "7 + 5 - 3 = 9"), *ELSEWHERE)
pays("countdown", NINE, 0.1, 0.1, *tagged("3 * 5 - 7", "7 - 5 / 3", "3 - 7 - 5"))  # 8, 16/3, -9: the form alone
right("countdown", TWELVE, *tagged("8 / 2 * 3", "8 \u00f7 2 \u00d7 3", "(8\uff0f2)\uff0a3", "8 / 2 \u00b7 3"))
right("countdown", TWELVE, *tagged(r"\frac{8}{2} \times 3", r"8 \cdot 3 \div 2", r"\dfrac{8}{2}\times3"))
wrong("countdown", TWELVE, *tagged(r"8\timesx3/2", "8*3/2,1", "08*3/2", "8*3/2+0", "8*3//2", "8 ** 2", "12"))

BEHIND = ["7 and 5 are 12 </think>\n<answer> ANSWER </answer>", "</think> So <answer> ANSWER </answer>, I think."]
PUBLISHED = {
    # a right answer in the form and elsewhere, a missed target in the form and elsewhere
    "tinyzero": (1, 1, 0.1, 0.1),  # 1 for the answer, else 0.1 for an answer in tags, wherever
    "nano_aha_moment": (1, 1 / 2, 1 / 2, 0),  # 1 for the answer and 1 for the form, of 2
    "grpo_zero": (1, 1 / 1.1, 0.1 / 1.1, 0),  # 1 for the answer and 0.1 for the form, of 1.1
    "mini_r1": (1, 1 / 2, 1 / 2, 0),
}
IN_THOUGHTS = [
    *("7 + 5 - 3", "<answer> 7 + 5 - 3", "<think> <answer> 7 + 5 - 3 </answer> </think>"),
    *(f"12 {mark} <answer> 7 + 5 - 3 </answer>" for mark in ("<think>", "<|im_end|>")),
    "</think> <answer> 7 + 5 - 3 </answer> <answer> 7 + 5 - 3 </answer>",
]
for recipe, values in PUBLISHED.items():
    for value, text in zip(values, [*filled(BEHIND, "7 + 5 - 3"), *filled(BEHIND, "7 + 5 + 3")], strict=True):
        pays("countdown_3to4", NINE, value, value, text, recipe=recipe)
    nothing = [*filled(BEHIND, *NO_NINES[3:4], *NO_NINES[6:-1], "07 + 5 - 3", "7. + 5 - 3", "7 + 5\n- 3"), *IN_THOUGHTS]
    pays("countdown_3to4", NINE, 0.0, 0.0, *nothing, recipe=recipe)
right("countdown_3to4", NINE, *filled(BEHIND, *NINES, "-3 + 7 + 5"))
right("countdown_3to4", TWELVE, *filled(BEHIND, "8 / 2 * 3", "3 / (2 / 8)"))
# 2 ** 60 + 1 / 2 is the same float; a hundred thousandth is near enough.
wrong("countdown_3to4", {"numbers": [2**60, 1, 2], "target": 2**60}, *filled(BEHIND, f"{2**60} + 1 / 2"))
right("countdown_3to4", {"numbers": [1, 1, 100_001], "target": 1}, *filled(BEHIND, "1 + 1 / 100001"))
wrong("countdown_3to4", {"numbers": [1, 1, 100_000], "target": 1}, *filled(BEHIND, "1 + 1 / 100000"))

# Hanoi

TOWER = {"pegs": "ABC", "board": ["A", "A"], "goal": "C"}
BOARD = {"pegs": "ABC", "board": ["A", "A", "A"], "goal": "C"}
SOLUTION = "1 A>C ; 2 A>B ; 1 C>B ; 3 A>C ; 1 B>A ; 2 B>C ; 1 A>C"
BOARDS = (
    "A>C A>B A>C : 1 A>C ; A>C A>B C : 2 A>B ; A>C B C>B : 1 C>B ; A>C B B : 3 A>C ; C B>C B>A : 1 B>A ; "
    "C B>C A : 2 B>C ; C C A>C : 1 A>C"
)
TWO = ["1 A>B ; 2 A>C ; 1 B>C", "1 A\u2192B ; 2 A\u2192C ; 1 B\u2192C", r"1 A\to B ; 2 A=>C ; 1 B \rightarrow C"]
TWO += ["**1 A>B** ; **2 A>C** ; **1 B>C**", "Step 1: 1 A>B\nStep 2: 2 A>C\nStep 3: 1 B>C", "- 1 A>B\n- 2 A>C\n- 1 B>C"]
TWO += ["```\n1 A>B ; 2 A>C ; 1 B>C\n```", "A>C A>B : 1 A>B ; A>C B : 2 A>C ; : 1 B>C", "1. 1 A>B\n2. 2 A>C\n3. 1 B>C"]
NOT_TWO = ["2 A>C ; 1 A>B", "1 A>C ; 2 A>B ; 1 C>B", "A>B ; A>C ; B>C", "", ";", "1 A>B 2 A>C 1 B>C", "15 A>B ; 2 A>C"]
NOT_TWO += ["1 A>D ; 2 A>C ; 1 D>C", "\u00b9 A>B ; \u00b2 A>C ; \u00b9 B>C", "not disk 1 A>B ; 2 A>C ; 1 B>C"]
right("hanoi", TOWER, *tagged(*TWO))
wrong("hanoi", TOWER, *tagged(*NOT_TWO), TWO[0], f"<answer> {TWO[0]}")
# A detour is a solution still, and what stands before a move is the policy's own affair.
right("hanoi", BOARD, *tagged(SOLUTION, BOARDS, BOARDS.replace("B>C A>C", "a word: x"), f"1 A>B ; 1 B>A ; {SOLUTION}"))
wrong("hanoi", BOARD, *tagged("A A A", "A>C A>B A>C :", BOARDS.replace(":", ";"), "1 A>A", "1 B>C", "2 A>C"))
wrong("hanoi", BOARD, *tagged(SOLUTION.replace("3 A>C", "3 A>B"), f"{SOLUTION} ; 3 C>A", ";" * 10**5))
# 0.2 for progress: one of seven moves, again after repeated ones, and six of seven, also when the seventh is undone.
pays("hanoi", BOARD, 0.2 / 7, 0.2 / 7, *tagged("1 A>C", "1 A>C" + " ; 1 C>A ; 1 A>C" * 10))
pays("hanoi", BOARD, 1.2 / 7, 1.2 / 7, *tagged(SOLUTION.rpartition(" ; ")[0], f"{SOLUTION} ; 1 C>A"))
# Three disks take 7 moves at most, and an answer may have three times as many.
wrong("hanoi", BOARD, *tagged("1 A>C" + " ; 1 C>A ; 1 A>C" * 10 + " ; 1 C>A"))

# Connections

WORDS = [
    ["CAF\u00c9", "BISTRO", "DINER", "PUB"],
    ["CAN'T", "WON'T", "DON'T", "ISN'T"],
    ["20,000", "RIGHT CROSS", "DOZEN", "GROSS"],
    ["ROCK 'N' ROLL", "JAZZ", "HIP-HOP", "Mr. Blues"],
]
PUZZLE = {"groups": [{"members": words} for words in WORDS]}


def groups(words, word="{}", comma=", ", between="\n"):
    return between.join(f"<group>{comma.join(map(word.format, group))}</group>" for group in words)


def swapped(*pairs):
    """The groups with words changed against one another."""
    change = {**dict(pairs), **{b: a for a, b in pairs}}
    return groups([[change.get(word, word) for word in group] for group in WORDS])


PLAIN, COLUMNS = groups(WORDS), groups(zip(*WORDS, strict=True))
right("connections", PUZZLE, PLAIN, PLAIN.lower(), groups(WORDS[::-1]), *(groups(WORDS, comma=one) for one in ",; \n"))
right("connections", PUZZLE, PLAIN.replace("'", "\u2019"), PLAIN.replace("\u00c9", "E\u0301"))
right("connections", PUZZLE, *(groups(WORDS, form) for form in ("**{}**", "`{}`", "\u201c{}\u201d", "{}\u200b")))
right("connections", PUZZLE, PLAIN.replace(", ", "\n- "), PLAIN.replace("RIGHT CROSS", "right \n cross"))
# A swap leaves two groups solved and two with three of four right, each of which is 0.1 of a group. Two swaps between
# separate groups: all four are near, none is solved, which is the most that pays unsolved.
for paid, text in (
    (2 / 4 + 0.1 * 2 / 4, swapped(("PUB", "CAN'T"))),
    (0.1, swapped(("PUB", "CAN'T"), ("GROSS", "JAZZ"))),
    (3 / 4, groups(WORDS[:3])),
):
    pays("connections", PUZZLE, paid, paid, text)
wrong("connections", PUZZLE, "", COLUMNS, groups(WORDS[:1] * 4), PLAIN + groups(WORDS[:1]))
wrong("connections", PUZZLE, *(groups([words, *WORDS[1:]]) for words in ([*WORDS[0], "JAZZ"], WORDS[0][:3], WORDS[1])))
ALL = ", ".join(word for group in WORDS for word in group)
wrong("connections", PUZZLE, f"<group>{ALL}</group>" * 4, f"<group>{ALL}", groups([word] for word in ALL.split(", ")))
wrong("connections", PUZZLE, PLAIN.replace("CAF\u00c9", "C\u0410F\u00c9"))  # a Cyrillic letter
wrong("connections", PUZZLE, PLAIN.replace("JAZZ", "JAZZY"), PLAIN.replace("20,000", "20"))

# Tic-tac-toe: x moves and wins at 3

WINS = {"board": "xx3oo6789", "opponent": "random", "plays": "x"}
right("tictactoe", WINS, *tagged("3", "**3**", "3.", "$3$", "\uff13", "```\n3\n```"))
wrong("tictactoe", WINS, *tagged("", "03", "\u00b3", "3 + 0", "not 3", "3 or 6", "36", r"$\boxed{3}$"), "3 </answer>")

# Extraction and sentences

JACK = {"object": {"name": "Jack", "age": 78, "children": 3}}
OBJECT = '{"name": "Jack", "age": 78, "children": 3}'
right("extraction", JACK, OBJECT, f"```json\n{OBJECT}\n```", f"<think> {{}} </think> {OBJECT}")
right("extraction", JACK, '{\n  "age": 78,\n  "name": "\\u004aack",\n  "children": 3\n}\n')
# 0.1 for all keys, and 0.4 for the fields: two of three are right, or all are beside another.
for children in ('"3"', "3.0", "4"):
    pays("extraction", JACK, 0.1 + 0.8 / 3, 0.1 + 0.8 / 3, OBJECT.replace("3}", f"{children}}}"))
pays("extraction", JACK, 0.5, 0.5, OBJECT.replace("}", ', "city": "Vienna"}'))
wrong("extraction", JACK, '{"name": "Jack", "age": 78}', "", OBJECT[:-1], f"Sure: {OBJECT}", f"{OBJECT}\n{OBJECT}")
wrong("extraction", JACK, OBJECT.replace("{", '{"name": "Ann", '), OBJECT.replace('"Jack"', '{"x": 1}'))

GARDEN = {"words": ["garden", "letter"], "least": 4, "most": 20}
TWENTY = "The letter in the garden was so old that it had to be put away by my aunt for us"
READ = "She read the letter in the garden."
right("sentences", GARDEN, READ, "Who left a letter in my garden?", " \n The GARDEN is full of a Letter.\n")
right("sentences", GARDEN, f'"{READ}"', f"{TWENTY}.", f"<think> letter? </think> {READ}")
for text in ("She sat in the garden and slept.", "She read the letters in the garden.", "The gardener had the letter."):
    pays("sentences", GARDEN, 0.1, 0.1, text)  # one of two words: half of 0.2
wrong("sentences", GARDEN, "", "She sat in the sun and slept.", READ[:-1], READ.lower(), "The garden letter.")
wrong("sentences", GARDEN, "She read the letter. It was in the garden.", "She read the letter\nin the garden.")
wrong("sentences", GARDEN, f"{TWENTY} all.", "Garden, letter, river, stone.", f"Sure! {READ}", f"{READ[:-1]} \ud800.")
wrong("sentences", GARDEN, "The garden letter and the garden letter in the garden.", f"<think> {READ} </think>")
SIX = {**GARDEN, "least": 6, "most": 6}
right("sentences", SIX, "The letter in the old garden.")
wrong("sentences", SIX, "The letter in the garden.", "The letter in the very old garden.")

# MATH. Each line is `reference <- answer`, or `problem :: reference <- answer`; `<-` is right, `</-` wrong.

MATHS = r"""
\frac{3}{4} <- \frac{6}{8}
4 <- 2^2
2\sqrt{3} <- \sqrt{12}
\frac{1}{2} <- 0.5
\frac{1}{2} <- $x = \frac{1}{2}$.
\frac{1}{3} <- 0.\overline{3}
\frac{22}{7} <- 3\frac{1}{7}
\frac{22}{7} <- 3.1428571
\sqrt{2} <- 1.414214
\frac{1}{2^{99}} <- 2^{-99}
\frac{1}{2004!} <- \frac{2005}{2005!}
11,\! 111,\! 111,\! 100 <- 11111111100
1.5\text{ million} <- 1{,}500{,}000
8 <- 2(4)
-5 <- −5
12\text{ miles per hour} <- 12 mph
\$18.90 <- 18.90
50\% <- 0.5
90^\circ <- 90°
What percent of 50 is 10? :: 20 <- 20\%
52_8 <- 52₈
52_8 <- 52
It costs \$20 and half is \$10. How much? :: 10 <- \frac{60}{6}
\left( 3, \frac{\pi}{2} \right) <- (3, \pi/2)
1,2 <- The answer is $1$ or $2$
\{1, 2, 3\} <- 3, 2, 1
x \ge -1 <- [-1, \infty)
y = 2x + 3 <- y - (2x + 3) = 0
x^2 + 1 <- x² + 1
\text{(A)} <- A
12 <- There are 12 apples.
15 <- 15\text{ (since the sum is 15)}
How many dozen eggs are there? :: 3 <- 3 dozen
Expand $(x+3)^2$. :: x^2+6x+9 <- 9+6x+x^2
Simplify $\frac{24}{36}$. :: \frac23 <- \frac{4}{6}
Choose 5 from a group of 6? :: 6 <- Choose 5 from a group of 6? 6
\frac{1}{2} </- 0.4999
\frac{1}{3} </- 0.333334
\frac{1}{2004!} </- \frac{1}{2006!}
1-\frac{1}{2^{99}} </- 1-\frac{1}{2^{98}}
20 </- 20\%
x \in [-2,7] </- g \in [-2,7]
[0, 1) </- [0, 1]
(1,2) </- \{1,2\}
(1,2) </- (2,1)
1,-2 </- -2<x<1
|x| </- x
3 </- 1 \text{ or } 3
12 </- It is not 12
12 </- Between 11 and 12
x=2 </- x=2\\x=3
7 </- 7\text{ dozen}
\text{(B)} </- (B) or (A)
\frac{1}{2} </- \frac12=\frac32
Compute $\binom{17}{9}$. :: 24310 </- \binom{17}{9}
Simplify $\sqrt{8}$. :: 2\sqrt{2} </- e^{\ln\sqrt{8}}
Compute $\binom{17}{9}$. :: 24310 </- >24310
Write 310 in base 5. :: 2220_5 </- (2220)_6
12 </- x = x
12 </- \mathbb{R}
Simplify $\frac{24}{36}$. :: \frac23 </- \frac{24}{36}
"""
for line in MATHS.strip().split("\n"):
    problem, _, pair = line.rpartition(" :: ")
    gold, arrow, answer = re.split(" (</?-) ", pair)
    paid, row = right if arrow == "<-" else wrong, {"problem": problem, "answer": gold}
    paid("math", row, rf"so \boxed{{{answer}}}", timeout_s=60.0)
    if re.search("[A-Z][a-z]+ | or ", answer):  # words around it, which tags hold as well
        paid("math", row, f"so </think> <answer> {answer} </answer>", prompt="tagged", timeout_s=60.0)

# Thoughts around an answer, texts before and behind it, and two answers, in each task that reads a text

TEMPLATES = {
    True: [
        "<think> Perhaps\nDRAFT\nNo, that is wrong. </think>ANSWER",
        "<think> So\nANSWER\nYes. </think>Here it is.\nANSWER",
        "Hmm, perhaps\nDRAFT\nNo.\n</think>ANSWER",
        "<|channel|>analysis<|message|>DRAFT<|end|><|start|>assistant<|channel|>final<|message|>\nANSWER",
        "Here is my thought process:\nDRAFT\n\nHere is my response:\nANSWER",
        "1. **First**, note what is given.\n2. **Then** combine.\n\n---\n\nANSWER\n\nLet me know!",
        "ANSWER\n<think> I hope that is right. </think>",
    ],
    False: [
        *("<think> So\nANSWER\n</think>I hope that this helps!", "<think> Perhaps\nANSWER\nWait, let me check"),
        *("Hmm, so\nANSWER\n</think>That is it.", "DRAFT\nANSWER", "ANSWER\n\nQuestion: And now?\nAnswer: DRAFT"),
        "<think> a </think>\nDRAFT\n<think> b </think>\nANSWER",
        *("<|channel|>analysis<|message|>ANSWER", "I give up.<|im_end|>ANSWER"),
    ],
}
BOMBS = [
    *("9**9**9**9", "9" * 5000, "nan", "\0", "\ud800", "(" * 3000 + ")" * 3000, "", "[[[[]]]]", "<answer></answer>"),
    *("__import__('os').system('sleep 600')", "[x for x in range(10**12)]", "1 or 2 or 3 or 4 or 5 or 6"),
]
"""Answers that attack who reads them."""
TAGGED = "<answer> ANSWER </answer>"
for task, row, form, answer, draft in (
    ("gsm8k", JARS, "#### ANSWER", "54", "77"),
    ("countdown", NINE, TAGGED, "7 + 5 - 3", "1 + 1"),
    ("hanoi", TOWER, TAGGED, TWO[0], "1 A>B"),
    ("connections", PUZZLE, "ANSWER", PLAIN, COLUMNS),
    ("tictactoe", WINS, TAGGED, "3", "6"),
):
    answer, draft, *bombs = filled([form], answer, draft, *BOMBS)
    for is_right, templates in TEMPLATES.items():
        texts = [text.replace("ANSWER", answer).replace("DRAFT", draft) for text in templates]
        (right if is_right else wrong)(task, row, *texts)
    wrong(task, row, *bombs)
wrong("countdown_3to4", NINE, *tagged(*BOMBS))
right("countdown", NINE, *(f"{tagged('7 + 5 - 3')[0]} {text}" for name, text in TURNS.items() if name != "harmony"))
wrong("countdown", NINE, *TURNS.values())
