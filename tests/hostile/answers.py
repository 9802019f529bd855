"""Hostile completions of the text tasks: answers in thoughts, hedging, idle moves, and the notation of a program."""

from tests.hostile.cases import Case

JARS = {"answer": "3 * 18 = 54\n#### 54"}
NINE = {"numbers": [3, 7, 5], "target": 9}
TOWER = {"pegs": "ABC", "board": ["A", "A"], "goal": "C"}
IDLE, SOLUTION = "1 A>B ; 1 B>A ; ", "1 A>B ; 2 A>C ; 1 B>C"

CASES = [
    *(
        Case("answer in thoughts", f"{task}, {name}", task, row, template.format(answer), most=0.0)
        for task, row, answer in (
            ("gsm8k", JARS, "#### 54"),
            ("countdown", NINE, "<answer> 7 + 5 - 3 </answer>"),
            ("hanoi", TOWER, "<answer> 1 A>B ; 2 A>C ; 1 B>C </answer>"),
        )
        for name, template in (
            ("closed", "<think> {} </think> done"),
            ("not closed", "<think> {}"),
            ("opened by the prompt", "{} </think>"),
            ("of another kind", "[THINK] {} [/THINK]"),
            ("in a channel", "<|channel|>analysis<|message|>{}"),
            ("after the end of the turn", "I give up.<|im_end|>{}"),
        )
    ),
    *(
        Case("hedging", name, "gsm8k", JARS, text, most=0.0)
        for name, text in (
            ("two marks", "#### 54\n#### 55"),
            ("mark and box", "#### 55 \\boxed{54}"),
            ("around a thought", "#### 55 <think> hm </think> #### 54"),
            ("a digit on each side of a thought", "#### 5<think> hm </think>4"),
        )
    ),
    *(
        Case("program notation", name, "countdown", NINE, f"<answer> {text} </answer>", most=0.0)
        for name, text in (
            ("comment", "7 + 5 - 3 # 9"),
            ("hexadecimal", "0x7 + 5 - 3"),
            ("underscore", "7 + 5 - 0_3"),
            ("superscript", "7 + 5 - \u00b3"),
            ("tuple", "7 + 5 - 3, 9"),
        )
    ),
    *(
        Case(
            "idle moves",
            f"{count} pairs",
            "hanoi",
            TOWER,
            f"<answer> {IDLE * count}1 A>B ; 2 A>C ; 1 B>C </answer>",
            most=0.0,
        )
        for count in (4, 50, 1000)
    ),
    Case("answer in thoughts", "honest", "gsm8k", JARS, "<think> #### 55 </think> #### 54", least=1.0),
    Case("program notation", "honest", "countdown", NINE, "<answer> 7 + 5 \u2212 3 </answer>", least=1.0),
    Case("idle moves", "honest", "hanoi", TOWER, "<answer> 1 A>B ; 2 A>C ; 1 B>C ; </answer>", least=1.0),
]
