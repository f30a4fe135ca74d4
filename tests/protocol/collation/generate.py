"""Makes `protocol/collation_table.py` and the recorded order that its test compares with.

Not part of the build. Needs PyICU (`pyicu-wheels`) and a Node whose ICU is the target's:

    python -m tests.protocol.collation.generate

PyICU gives the collation elements of every code point and the contractions; its ICU may be older. Node's
ICU, which only compares, then corrects the order of single code points and adds those that PyICU lacks.
"""

from __future__ import annotations

import base64
import json
import lzma
import random
import struct
import subprocess
import tempfile
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from protocol.collation_weights import SPECIAL, Element

HERE = Path(__file__).parent
TABLE = HERE.parents[2] / "protocol" / "collation_table.py"
RECORDED = HERE / "recorded_order.json"

Weights = tuple[int, int, int]
UNASSIGNED = range(0xFE000000, 0xFF000000)
"""Primary weights that ICU derives from the code point."""

COMMON, UPPER_CASE, COMPATIBLE = 0x500, 0x1C00, 0x1000
"""Third weights of most characters, of capital letters and of compatibility forms; the first is also the
second weight of most characters."""


class Icu:
    """PyICU's root collation."""

    def __init__(self) -> None:
        import icu

        self.collator: Any = icu.Collator.createInstance(icu.Locale("en_US"))
        self.collator.setAttribute(icu.UCollAttribute.NORMALIZATION_MODE, icu.UCollAttributeValue.ON)
        self.iterator: Any = self.collator.createCollationElementIterator("")
        self.is_assigned = lambda code_point: icu.Char.charType(code_point) != 0

    def elements(self, text: str) -> tuple[Weights, ...]:
        """The collation elements of a string, without case and quaternary bits."""
        self.iterator.setText(text)
        out: list[Weights] = []
        for signed in self.iterator:
            order = signed & 0xFFFFFFFF
            if order & 0xC0 == 0xC0 and out:  # the lower halves of the element before
                primary, secondary, tertiary = out[-1]
                out[-1] = (
                    primary | order >> 16 & 0xFFFF,
                    secondary | order >> 8 & 0xFF,
                    tertiary | order & 0x3F,
                )
            else:
                out.append((order & 0xFFFF0000, order & 0xFF00, (order & 0x3F) << 8))
        return tuple(out)


def is_decomposed(text: str) -> bool:
    return unicodedata.normalize("NFD", text) == text


def single_elements(icu: Icu) -> dict[int, tuple[Weights, ...]]:
    """The elements of every code point that is not decomposed and has weights of its own."""
    out = {}
    for code_point in range(0x110000):
        if 0xD800 <= code_point <= 0xDFFF or not is_decomposed(chr(code_point)):
            continue
        elements = icu.elements(chr(code_point))
        if len(elements) != 1 or elements[0][0] not in UNASSIGNED:
            out[code_point] = elements
    return out


IDEOGRAPHIC = (
    range(0x3400, 0xA000),
    range(0x12000, 0x14680),
    range(0x16800, 0x16A40),
    range(0x17000, 0x18E00),
    range(0x1B170, 0x1B300),
    range(0x1D800, 0x1DAB0),
    range(0x20000, 0x3FFFF),
    range(0xA000, 0xA4D0),
)
"""Scripts without contractions, left out of the search for speed."""


def contractions(icu: Icu, singles: dict[int, tuple[Weights, ...]]) -> dict[str, tuple[Weights, ...]]:
    """Strings of two and three code points whose elements are not those of their parts in a row."""
    letters = [c for c, e in singles.items() if e and not any(c in skipped for skipped in IDEOGRAPHIC)]
    blocks: dict[int, list[int]] = defaultdict(list)
    for code_point in letters:
        blocks[code_point >> 8].append(code_point)
    marks = [c for c in letters if unicodedata.combining(chr(c)) and (c < 0x370 or 0x1A00 < c < 0x3100)] + [
        0xB7
    ]
    out: dict[str, tuple[Weights, ...]] = {}
    for first in letters:
        for second in {*blocks[first >> 8], *marks}:
            text = chr(first) + chr(second)
            elements = icu.elements(text)
            apart = singles[first] + singles[second]
            swapped = singles[second] + singles[first]
            # Marks younger than Python's Unicode data are reordered by ICU and not by us: no contraction.
            young = any(unicodedata.category(char) == "Cn" for char in text)
            reordered = elements == swapped and (young or unicodedata.combining(text[1]))
            if elements != apart and not reordered and is_decomposed(text):
                out[text] = elements
    for code_point in range(0x110000):
        text = unicodedata.normalize("NFD", chr(code_point)) if not 0xD800 <= code_point <= 0xDFFF else ""
        if len(text) >= 3:
            elements = icu.elements(text)
            if elements != greedy(text, singles, out):
                out[text] = elements
    for text in ("\u0fb2\u0f71\u0f80", "\u0fb3\u0f71\u0f80"):
        out[text] = icu.elements(text)
    return out


def greedy(
    text: str, singles: dict[int, tuple[Weights, ...]], known: dict[str, tuple[Weights, ...]]
) -> tuple[Weights, ...]:
    out: tuple[Weights, ...] = ()
    at = 0
    while at < len(text):
        pair = text[at : at + 2]
        if pair in known:
            out, at = out + known[pair], at + 2
        else:
            out, at = out + singles.get(ord(text[at]), ()), at + 1
    return out


Fraction = tuple[int, int]


def merge(
    icu: Icu, singles: dict[int, tuple[Weights, ...]], order: list[list[int]]
) -> dict[int, list[tuple[Fraction, Fraction, int]]]:
    """Elements with weights that have room between them, in the order that Node gives.

    `order`: for each code point in turn, the level at which it differs from the one before, whether it is
    assigned, and the level at which it differs from nothing.
    """
    moved = misplaced(singles, order)
    settled = singles.keys() - moved
    out: dict[int, list[tuple[Fraction, Fraction, int]]] = {}
    added: dict[tuple[int, int], int] = defaultdict(int)

    def after(weight: Fraction, kind: int) -> Fraction:
        added[kind, weight[0]] += 1
        return weight[0], added[kind, weight[0]]

    previous: list[tuple[Fraction, Fraction, int]] = []
    for index, (code_point, level, is_assigned, own_level) in enumerate(order):
        if code_point in settled:
            out[code_point] = [((p, 0), (s, 0), t) for p, s, t in singles[code_point]]
            previous = out[code_point]
            continue
        if not is_assigned or (code_point not in moved and icu.is_assigned(code_point)):
            if code_point < 0xD800 or code_point > 0xDFFF:
                decomposed = unicodedata.normalize("NFD", chr(code_point))
                if all(ord(char) in out for char in decomposed):
                    previous = [element for char in decomposed for element in out[ord(char)]]
            continue
        if own_level in (0, 3):
            elements: list[tuple[Fraction, Fraction, int]] = []
        elif level == 0:
            elements = list(previous)
        elif order[index + 1][1] == 0 and order[index + 1][0] in settled:
            elements = [((p, 0), (s, 0), t) for p, s, t in singles[order[index + 1][0]]]
        elif own_level == 2 or (own_level == 1 and level == 2 and not previous[0][0][0]):
            elements = [((0, 0), after(previous[0][1], 2), COMMON)]
        elif level == 3:
            upper = unicodedata.category(chr(code_point)) == "Cn" and code_point < 0x16F00
            elements = [*previous[:-1], (*previous[-1][:2], UPPER_CASE if upper else COMPATIBLE)]
        elif level == 2:
            elements = [(previous[0][0], after(previous[0][1], 2), COMMON)]
        else:
            elements = [(after(previous[0][0], 1), (COMMON, 0), COMMON)]
        out[code_point] = elements
        previous = elements
    return out


def misplaced(singles: dict[int, tuple[Weights, ...]], order: list[list[int]]) -> set[int]:
    """Code points with one element that Node orders otherwise (PyICU's ICU is older)."""
    ranked = [
        (singles[c][0][0], c)
        for c, *_ in order
        if len(singles.get(c, ())) == 1 and singles[c][0][0] and singles[c][0][1:] == (COMMON, COMMON)
    ]
    out = set()
    highest = 0
    for index, (weight, code_point) in enumerate(ranked):
        following = [w for w, _ in ranked[index + 1 : index + 4]]
        if weight > highest and following and weight > max(following):
            out.add(code_point)  # jumps ahead: it is the stranger, not what follows
        elif weight < highest:
            out.add(code_point)
        else:
            highest = max(highest, weight)
    return out


def pack(
    singles: dict[int, list[tuple[Fraction, Fraction, int]]],
    pairs: dict[str, tuple[Weights, ...]],
) -> bytes:
    """The form that `collation_weights.CollationWeights` reads, with weights as ranks."""
    wide = {text: [((p, 0), (s, 0), t) for p, s, t in elements] for text, elements in pairs.items()}
    every = [e for elements in (*singles.values(), *wide.values()) for e in elements]

    def ranks(values: Iterable[Any]) -> dict[Any, int]:
        return {value: rank for rank, value in enumerate(sorted(set(values)))}

    primaries = ranks([(0, 0), *(e[0] for e in every)])
    primaries = {w: rank + SPECIAL * (w[0] >= UNASSIGNED.stop) for w, rank in primaries.items()}
    secondaries = ranks([(0, 0), *(e[1] for e in every)])
    tertiaries = ranks([0, *(e[2] for e in every)])

    def small(elements: list[tuple[Fraction, Fraction, int]]) -> list[Element]:
        return [(primaries[p], secondaries[s], tertiaries[t]) for p, s, t in elements]

    code_points = sorted(singles)
    ranked = [element for code_point in code_points for element in small(singles[code_point])]
    text = "\n".join(
        f"{','.join(str(ord(char)) for char in text)};{','.join(str(w) for e in small(elements) for w in e)}"
        for text, elements in sorted(wide.items())
    ).encode()

    def column(code: str, values: list[int]) -> bytes:
        return struct.pack(f"<{len(values)}{code}", *values)

    def differences(values: list[int]) -> list[int]:
        return [value - before for before, value in zip([0, *values], values, strict=False)]

    return b"".join(
        [
            struct.pack(
                "<5I", len(code_points), len(ranked), len(text), secondaries[COMMON, 0], tertiaries[COMMON]
            ),
            column("I", differences(code_points)),
            column("B", [len(singles[code_point]) for code_point in code_points]),
            column("i", differences([p for p, _, _ in ranked])),
            column("H", [s for _, s, _ in ranked]),
            column("B", [t for _, _, t in ranked]),
            text,
        ]
    )


def node(*arguments: str) -> None:
    subprocess.run(["node", str(HERE / "order.js"), *arguments], check=True)


ALPHABETS = (
    "aAbBzZ09 _-./'",
    "éÉäÅñøłđßæœıİſŉǆﬁﬀµ½①²Ⅷ",
    "\u0301\u0308\u0323\u0327\u0306\u0338\u200b\u00ad\u0001\u034f",
    "αΩжЖяґשאבپبثआइकिกเแລໄខ",
    "漢字中日本一丁㐀𠀀あアｱ한글ᄀ",
    "😀🎉€$£+<|→∑\u2028\ue000\uffff\ufffd\U00050000",
    "lL\u00b7\u0387иИ\u0306\u0d46\u0d3e\u0fb2\u0f71\u0f80\u0627\u0653",
)


def random_strings(count: int) -> list[str]:
    chance = random.Random(4)
    out = set()
    while len(out) < count:
        alphabets = [*chance.sample(ALPHABETS, chance.randint(1, 3)), ALPHABETS[0]]
        out.add("".join(chance.choice(chance.choice(alphabets)) for _ in range(chance.randint(1, 5))))
    return sorted(out)


def main() -> None:
    """Writes both files."""
    icu = Icu()
    singles = single_elements(icu)
    pairs = contractions(icu, singles)
    with tempfile.TemporaryDirectory() as folder:
        code_points, texts = Path(folder) / "order.json", Path(folder) / "texts.json"
        node("code-points", str(code_points))
        merged = merge(icu, singles, json.loads(code_points.read_text()))
        packed = lzma.compress(pack(merged, pairs), preset=9 | lzma.PRESET_EXTREME)
        texts.write_text(json.dumps(random_strings(3_000)))
        node("strings", str(texts), str(RECORDED))
    lines = base64.b85encode(packed).decode()
    body = "\n".join(f'    "{lines[at : at + 100]}"' for at in range(0, len(lines), 100))
    TABLE.write_text(
        '"""Collation weights of the CLDR root, as `collation_weights` reads them; made by a script.\n\n'
        "Derived from Unicode data, (c) Unicode, Inc., under the Unicode License v3\n"
        '(https://www.unicode.org/license.txt).\n"""\n\n'
        f"PACKED = (\n{body}\n)\n"
    )


if __name__ == "__main__":
    main()
