"""Pictures: nothing overlaps, every text fits, arrows go from left to right, the documents are well-formed."""

from __future__ import annotations

import random
import xml.etree.ElementTree as ET
from itertools import combinations, pairwise

import pytest

from watersmeet.drawing import (
    LABEL_SIZE,
    LINE_SIZE,
    PADDING,
    TITLE_SIZE,
    Arrow,
    Box,
    Diagram,
    folded,
    layered,
    place,
    text_width,
    to_dot,
    to_svg,
)

SVG = "{http://www.w3.org/2000/svg}"


def random_diagram(seed):
    rng = random.Random(seed)
    count = rng.choice([0, 1, 2, 5, 9, 20])
    boxes = tuple(
        Box(f"b{i}", "x" * rng.randint(1, 25), ("line " * rng.randint(0, 5),) * rng.randint(0, 3)) for i in range(count)
    )
    pairs = [(i, j) for i, j in combinations(range(count), 2)]
    chosen = [rng.choice(pairs) for _ in range(rng.randint(0, 2 * count))] if pairs else []
    return Diagram(
        "random",
        boxes,
        tuple(Arrow(f"b{i}", f"b{j}", rng.choice(["", "k", "left join on something"])) for i, j in chosen),
    )


def overlap(one, other):
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


@pytest.mark.parametrize("seed", range(60))
def test_nothing_overlaps_and_every_text_fits(seed):
    picture = place(random_diagram(seed))
    boxes = [(b.x, b.y, b.x + b.width, b.y + b.height) for b in picture.boxes]
    labels = [
        (a.label[0] - text_width(a.arrow.label, LABEL_SIZE), a.label[1] - LABEL_SIZE, *a.label)
        for a in picture.arrows
        if a.arrow.label
    ]
    for one, other in combinations(boxes + labels, 2):
        assert not overlap(one, other)
    for x0, y0, x1, y1 in boxes + labels:
        assert x0 >= 0 and y0 >= 0 and x1 <= picture.width and y1 <= picture.height
    for b in picture.boxes:
        inner = b.width - 2 * PADDING + 1e-6
        assert text_width(b.box.title, TITLE_SIZE, bold=True) <= inner
        assert all(text_width(line, LINE_SIZE) <= inner for line in b.box.lines)
    by_id = {b.box.id: b for b in picture.boxes}
    for a in picture.arrows:
        xs = [x for x, _ in a.points]
        assert xs == sorted(xs), "from left to right"
        target = by_id[a.arrow.target]
        assert target.y < a.points[-1][1] < target.y + target.height and a.points[-1][0] == target.x
    ends = [a.points[-1] for a in picture.arrows]
    assert len(set(ends)) == len(ends), "every arrow has its own end"
    for a in picture.arrows:  # level parts over a column's width pass between its boxes
        for (x0, y0), (x1, y1) in zip(a.points[2:-2:2], a.points[3:-2:2]):
            assert y0 == y1
            assert not any(overlap((x0, y0 - 1, x1, y1 + 1), b) for b in boxes)


@pytest.mark.parametrize("seed", range(8))
def test_high_pictures_are_folded(seed):
    rng = random.Random(seed)
    count = rng.randint(60, 400)
    boxes = tuple(Box(f"b{i}", "x" * rng.randint(1, 25), ("figures",) * rng.randint(0, 2)) for i in range(count))
    first = max(1, count // rng.choice([2, 3, 10]))
    arrows = tuple(Arrow(f"b{rng.randrange(first)}", f"b{i}", "k") for i in range(first, count))
    high = place(Diagram("many", boxes, arrows))
    picture = folded(high)
    assert picture.width / picture.height > min(1.0, high.width / high.height)
    places = [(b.x, b.y, b.x + b.width, b.y + b.height) for b in picture.boxes]
    assert not any(overlap(one, other) for one, other in combinations(places, 2))
    assert all(x0 >= 0 and y0 >= 0 and x1 <= picture.width and y1 <= picture.height for x0, y0, x1, y1 in places)
    by_id = {b.box.id: b for b in picture.boxes}
    assert [b.box.id for b in picture.boxes] == [b.box.id for b in high.boxes]
    for a in picture.arrows:
        (x0, y0), *_, (x1, y1) = a.points
        source, target = by_id[a.arrow.source], by_id[a.arrow.target]
        assert x0 == source.x + source.width < x1 == target.x, "from left to right"
        for (xa, ya), (xb, yb) in pairwise(a.points):
            assert xa == xb or ya == yb, "level or upright"
            line = (xa + 0.1, min(ya, yb), xb - 0.1, max(ya, yb)) if ya == yb else (xa, min(ya, yb), xb, max(ya, yb))
            assert not any(overlap(line, b) for b in places), "around all boxes"
        assert source.y < y0 < source.y + source.height and target.y < y1 < target.y + target.height


def test_broad_and_low_pictures_stay():
    picture = place(random_diagram(3))
    assert folded(picture) is picture


def test_columns_are_longest_paths_and_sources_stand_before_their_readers():
    boxes = tuple(Box(n, n) for n in "abcde")
    graph = layered(Diagram("", boxes, tuple(Arrow(*p) for p in ("ab", "bc", "ac", "dc", "ec"))))
    assert [[s.box for s in c if s.box] for c in graph.columns] == [["a"], ["b", "d", "e"], ["c"]]
    assert sum(s.box is None for c in graph.columns for s in c) == 1, "a to c passes the column of b"


def test_long_arrows_of_a_box_share_a_way():
    boxes = tuple(Box(n, n) for n in "abcdef")
    graph = layered(Diagram("", boxes, tuple(Arrow(*p) for p in ("ab", "bc", "cd", "ad", "ae", "ce", "cf"))))
    assert sum(s.box is None for c in graph.columns for s in c) == 2, "to d and e: one slot in each column between"


def test_arrows_are_uncrossed():
    boxes = tuple(Box(n, n) for n in "abcxyz")
    graph = layered(Diagram("", boxes, tuple(Arrow(*p) for p in ("az", "by", "cx"))))
    first, second = ([s.box for s in c] for c in graph.columns)
    assert [{"a": "z", "b": "y", "c": "x"}[n] for n in first] == second


def test_names_are_escaped():
    diagram = Diagram("<&>", (Box("a", 'the "a" & <b>', ("\\ back",)), Box("b", "b")), (Arrow("a", "b", 'on "k" < 1'),))
    root = ET.fromstring(to_svg(place(diagram)))
    assert [t.text for t in root.iter(f"{SVG}text")] == ['on "k" < 1', 'the "a" & <b>', "\\ back", "b"]
    assert root.find(f"{SVG}title").text == "<&>"
    assert '"a" [label="the \\"a\\" & <b>\\n\\\\ back"' in to_dot(diagram)
    assert '"a" -> "b" [label="on \\"k\\" < 1"];' in to_dot(diagram)


def test_wrong_graphs_are_refused():
    with pytest.raises(AssertionError, match="without its box"):
        Diagram("", (), (Arrow("a", "b"),))
    with pytest.raises(AssertionError, match="a cycle"):
        place(Diagram("", (Box("a", "a"), Box("b", "b")), (Arrow("a", "b"), Arrow("b", "a"))))
