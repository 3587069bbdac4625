"""lowerhalf/image/lazy/pending.c against a model: any sequence of loads, removals and moves."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
from compiling import LOWER, build_core
from hypothesis import given, settings
from hypothesis import strategies as st

PAGE, RUN_PAGES, SPACE = 4096, 512, 2048  # SPACE: pages of the addresses that are used
DRIVER = """
#include "image/lazy/pending.h"
mpy_pending_t list;
static mpy_image_run_t runs[64];
void begin(void) { mpy_pending_free(&list); }
int add(unsigned load, unsigned page, unsigned pages, unsigned from, unsigned until) {
    runs[load] = (mpy_image_run_t){.address = page * 4096ul, .bytes = pages * 4096ul};
    mpy_image_kept_t wanted = {from * 4096ul, (until - from) * 4096ul};
    mpy_image_part_t part = {.run = &runs[load], .wanted = &wanted, .nwanted = 1};
    return mpy_pending_add(&list, &part);
}
void sort(void) { mpy_pending_sort(&list); }
/* The page of an image that belongs at a page, or -1. */
long origin(unsigned page) {
    mpy_pending_item_t *item = mpy_pending_find(&list, page * 4096ul);
    return item ? (long)((item->origin + page * 4096ul - item->address) / 4096) : -1;
}
void load(unsigned number) {
    mpy_pending_item_t *item;
    uint32_t first, pages;
    while ((item = mpy_pending_of(&list, number)) && (pages = mpy_pending_missing(item, &first)))
        mpy_pending_clear(item, first, pages);
}
void drop(unsigned from, unsigned until) { mpy_pending_drop(&list, from * 4096ul, until * 4096ul); }
int move(unsigned from, unsigned to, unsigned pages) {
    return mpy_pending_move(&list, from * 4096ul, to * 4096ul, pages * 4096ul);
}
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ctypes.CDLL]:
    where = tmp_path_factory.mktemp("pending")
    driver = where / "driver.c"
    driver.write_text(DRIVER)
    library = build_core(where / "pending.so", [driver, LOWER / "image/lazy/pending.c"], "-shared", "-fPIC")
    loaded = ctypes.CDLL(str(library))
    loaded.origin.restype = ctypes.c_long
    yield loaded
    loaded.begin()


spans = st.tuples(st.integers(0, SPACE - 1), st.integers(1, 300)).map(lambda s: (s[0], min(s[0] + s[1], SPACE)))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("load"), st.integers(0, 3)),
        st.tuples(st.just("drop"), spans),
        st.tuples(st.just("move"), spans, st.integers(0, SPACE)),
    ),
    max_size=12,
)
wanted = st.lists(st.tuples(st.integers(0, RUN_PAGES - 1), st.integers(1, RUN_PAGES)), min_size=4, max_size=4)


@given(wanted, steps)
@settings(deadline=None, max_examples=200)
def test_pages_are_where_the_program_expects_them(
    core: ctypes.CDLL, ranges: list[tuple[int, int]], script: list
) -> None:
    """Four runs of 512 pages, side by side; of each run one range is wanted."""
    core.begin()
    model: dict[int, int] = {}  # page: page of the image
    for number, (start, length) in enumerate(ranges):
        first = number * RUN_PAGES
        end = min(start + length, RUN_PAGES)
        assert core.add(number, first, RUN_PAGES, first + start, first + end) == 0
        model |= {page: page for page in range(first + start, first + end)}
    core.sort()
    for kind, *rest in script:
        if kind == "load":
            core.load(rest[0])
            model = {page: origin for page, origin in model.items() if origin // RUN_PAGES != rest[0]}
        elif kind == "drop":
            core.drop(*rest[0])
            model = {page: origin for page, origin in model.items() if not rest[0][0] <= page < rest[0][1]}
        else:
            (first, end), to = rest
            if first < to + end - first and to < end:
                continue  # mremap(2) refuses places that overlap
            assert core.move(first, to, end - first) == 0
            moved = {page - first + to: origin for page, origin in model.items() if first <= page < end}
            gone = {*range(first, end), *range(to, to + end - first)}
            model = {page: origin for page, origin in model.items() if page not in gone} | moved
    assert {page: core.origin(page) for page in range(2 * SPACE) if core.origin(page) >= 0} == model
