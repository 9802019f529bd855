"""Words behind a number that make it another one: `7 tenths`, `7 squared`, `7 dozen`, `7 and a half`."""

import re

ONES = "zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|[a-z]{3,5}teen"
TENS = "twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
CHANGES = re.compile(
    rf"\b(?:{ONES}|{TENS}|tens|lakhs?|crores?|hundreds?|thousands?|[a-z]*illi(?:on|ard)s?|dozens?|scores?|gross|grand|half|halves"
    r"|thirds?|quarters?|(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|[a-z]{3,5}teen|[a-z]{3,5}tie|hundred|thousand"
    r"|[a-z]*illion)ths?|squared|cubed|halved|doubled|tripled|quadrupled|factorial|negative|reciprocal|inverse"
    r"|plus|minus|divided|multiplied|modulo|mod|not|never|wrong|false|incorrect)\b",
    re.IGNORECASE,
)
