"""The notes of a whole stack of layers, from those of one that was cut short.

Notes are cut into passes, which go through the layers once, up or down, and passes into runs, one a
layer. What the runs of the first group of layers did is repeated for every group that was taken
out; a storage that is freed is found by how many layers away it was allocated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from autotune.tracing.depth import Fold, Irregular, layer_in
from autotune.tracing.recorder import Note

_AGAINST = 2
"""Layers against the direction of a pass that begin a new one; a single one is no turn, since what
belongs to the last layer may go when the next one has begun."""


@dataclass(slots=True)
class _Run:
    """What happened in a layer during a pass; of no layer, what came before the first one."""

    number: int
    """Of its pass."""
    layer: int | None
    start: int
    end: int

    @property
    def key(self) -> tuple[int, int | None]:
        return self.number, self.layer


@dataclass(frozen=True, slots=True)
class _Born:
    """Where a storage was allocated: which of the allocations of which run."""

    number: int
    layer: int | None
    place: int


def settled(notes: Sequence[Note], breaks: Iterable[int]) -> list[Note]:
    """The notes with ends that follow each other in the order in which their storages were made.

    Nothing is asked for between them, so that their order is of no account; but it may be an
    accident, as where many go at once.

    Args:
        notes: In order.
        breaks: Places that no end crosses.
    """
    edges = frozenset(breaks)
    found: list[Note] = []
    ends: list[Note] = []
    for place, note in enumerate(notes):
        if ends and (not note.is_free or place in edges or note.phase != ends[-1].phase):
            found += sorted(ends, key=lambda end: end.storage)
            ends = []
        (ends if note.is_free else found).append(note)
    return [*found, *sorted(ends, key=lambda end: end.storage)]


class Unfolded:
    """The notes of the whole stack, and where everything that stood in the short one's has gone.

    Args:
        notes: Of the short stack, from the first one on.
        marks: Places of notes that something begins at.
        joined: Of storages that several tensors were joined in, the bytes of each layer's.
        fold: What was taken out.

    Raises:
        Irregular: The groups do not do the same, or do what cannot be told apart.
    """

    def __init__(
        self,
        notes: Sequence[Note],
        marks: Sequence[int],
        joined: Mapping[int, Mapping[int, int]],
        fold: Fold,
    ) -> None:
        self._fold = fold
        self._old = notes
        self._joined = joined
        self._layer_in = layer_in(fold.path)
        self._runs = list(_runs(notes, frozenset(marks)))
        self._by_key = {run.key: run for run in self._runs}
        self._starts = {run.start: run for run in self._runs}
        self._run_of_note: list[_Run] = [
            run for run in self._runs for _ in range(run.start, run.end)
        ]
        self._born: dict[int, _Born] = {}
        """By storage."""
        self._allocated: dict[tuple[int, int | None], list[int]] = {}
        for run in self._runs:
            made = self._allocated[run.key] = []
            for note in notes[run.start : run.end]:
                if not note.is_free:
                    self._born[note.storage] = _Born(run.number, run.layer, len(made))
                    made.append(note.storage)
        self._check()
        self.notes: list[Note] = []
        self._numbers: dict[tuple[int, int], int] = {}
        self._places: dict[tuple[int, int | None, int], list[int]] = {}
        """By run and copy, where each of its notes has gone, and where it ends."""
        for run, copy in self._in_order():
            places = self._places[run.number, run.layer, copy] = []
            for place in range(run.start, run.end):
                places.append(len(self.notes))
                self._write(place, run, copy)
            places.append(len(self.notes))

    def mark(self, place: int) -> int:
        """Where something begins that began at a place of the short notes."""
        if place == len(self._old):
            return len(self.notes)
        run = self._starts[place]
        # Copies come after what they are copies of, or before: a mark is at the start of a pass.
        return self._places[run.number, run.layer, 0][0]

    def storages(self, storage: int) -> Iterator[int]:
        """All that a storage of the short notes stands for."""
        layer = self._born[storage].layer
        for copy in range(1 if layer is None else self.num_of(layer)):
            yield self._numbers[storage, copy]

    def num_of(self, layer: int) -> int:
        """How many layers of the whole stack a layer of the short one stands for."""
        return 1 + self._fold.num_copies * (self._fold.first <= layer < self._fold.second)

    def storage_of(self, storage: int, layer: int, copy: int) -> int:
        """What a storage that belongs to a layer is for a copy of that layer; -1 is no layer."""
        born = self._born[storage]
        found, copy = self._seen_from(layer, copy, storage, born)
        return self._numbers[found, copy]

    def place_of(self, place: int, layer: int, copy: int) -> int:
        """Where the place after so many notes is for a copy of the layer that it belongs to."""
        if not place:
            return 0
        run = self._run_of_note[place - 1]
        offset = place - run.start
        if not self._fold.is_inside(layer):
            copy = 0
        elif run.layer is None:
            raise Irregular("what belongs to a layer happens outside of all of them")
        else:
            whole = self._whole(layer, copy) + run.layer - layer
            short, copy = self._fold.short(whole)
            run = self._by_key[run.number, short]
        return self._places[run.number, run.layer, copy][offset]

    def _whole(self, layer: int, copy: int) -> int:
        return self._fold.whole(layer) + copy * self._fold.unit

    def _in_order(self) -> Iterator[tuple[_Run, int]]:
        """Every run of the whole stack: one of the short one's, and which copy of it."""
        fold = self._fold
        for run in self._runs:
            yield run, 0
            layer = run.layer
            last_of_first = fold.second - 1
            if layer not in (last_of_first, fold.second):
                continue
            first, second = (self._by_key[run.number, n] for n in (fold.first, fold.second))
            is_up = first.start < second.start
            if layer == (last_of_first if is_up else fold.second):
                layers = range(fold.first, fold.second)
                for number in range(fold.num_copies):
                    copy = number + 1 if is_up else fold.num_copies - number
                    for one in layers if is_up else reversed(layers):
                        yield self._by_key[run.number, one], copy

    def _write(self, place: int, run: _Run, copy: int) -> None:
        note = self._old[place]
        born = self._born[note.storage]
        if not note.is_free:
            if note.storage in self._joined and (
                note.phase != "optimizer" or self._fold.is_inside(run.layer)
            ):
                raise Irregular("tensors of several layers are joined")
            numbers = [len(self._numbers)]
            self._numbers[note.storage, copy] = numbers[0]
        elif self._goes_with_others(run.layer, born):
            self._check_twin(place, note.storage, born)
            numbers = list(self.storages(note.storage))
        else:
            numbers = [self._numbers[self._seen_from(run.layer, copy, note.storage, born)]]
        self.notes += [
            note._replace(
                storage=number,
                num_bytes=note.num_bytes + self._growth(note.storage),
                module=self._renamed(note.module, run.layer, copy),
            )
            for number in numbers
        ]

    def _goes_with_others(self, layer: int | None, born: _Born) -> bool:
        """Whether what a layer has made goes elsewhere, where that of all layers goes at once."""
        fold = self._fold
        if fold.is_inside(layer) or born.layer is None or not fold.is_inside(born.layer):
            return False
        return layer is None or abs(born.layer - layer) > fold.unit

    def _check_twin(self, place: int, storage: int, born: _Born) -> None:
        """Raises where what both groups have made does not go at once.

        Raises:
            Irregular: That is so.
        """
        assert born.layer is not None
        fold = self._fold
        away = fold.unit if born.layer < fold.second else -fold.unit
        twin = self._allocated[born.number, born.layer + away][born.place]
        for step in (-1, 1):
            other = place
            while 0 <= other < len(self._old) and self._old[other].is_free:
                if self._old[other].storage == twin:
                    return
                other += step
        raise Irregular("what layers make does not go at once")

    def _growth(self, storage: int) -> int:
        """Bytes by which a storage is larger in the whole stack."""
        parts = self._joined.get(storage)
        if not parts:
            return 0
        fold = self._fold
        first = sum(parts.get(layer, 0) for layer in range(fold.first, fold.second))
        second = sum(parts.get(layer, 0) for layer in range(fold.second, fold.end))
        if first != second:
            raise Irregular("layers have unequal parts in what is joined")
        return first * fold.num_copies

    def _seen_from(
        self, layer: int | None, copy: int, storage: int, born: _Born
    ) -> tuple[int, int]:
        """The storage, and which copy of it, that a run of a layer means by one of the short notes.

        A layer that is repeated, or the neighbour of one, means what lies as many layers away.
        """
        fold = self._fold
        if not fold.is_inside(layer) and not fold.is_inside(born.layer):
            return storage, 0
        if layer is None or born.layer is None or abs(born.layer - layer) > fold.unit:
            raise Irregular("what one layer makes goes in another one, far away")
        short, copy = fold.short(self._whole(layer, copy) + born.layer - layer)
        return self._allocated[born.number, short][born.place], copy

    def _renamed(self, module: str, layer: int | None, copy: int) -> str:
        found = self._layer_in.match(module)
        if found is None:
            return module
        number = int(found[2])
        if layer is not None and self._fold.is_inside(layer):
            number += self._whole(layer, copy) - layer
        else:
            number = self._fold.whole(number)
        return f"{found[1]}{number}{module[found.end() :]}"

    def _check(self) -> None:
        """Raises where both groups of layers do not do the same.

        Raises:
            Irregular: That is so.
        """
        fold = self._fold
        numbers = {run.number for run in self._runs}
        for number in numbers:
            layers = range(fold.first, fold.end)
            present = [(number, layer) in self._by_key for layer in layers]
            if not any(present):
                continue
            if not all(present):
                raise Irregular("a pass leaves out some layers")
            for layer in range(fold.first, fold.second):
                self._compare(self._by_key[number, layer], self._by_key[number, layer + fold.unit])

    def _compare(self, run: _Run, other: _Run) -> None:
        if run.end - run.start != other.end - other.start:
            raise Irregular(f"layers {run.layer} and {other.layer} do not do as much")
        pairs = zip(self._old[run.start : run.end], self._old[other.start : other.end], strict=True)
        for note, twin in pairs:
            if self._described(note, run) != self._described(twin, other):
                raise Irregular(
                    f"{note.operator or 'a free'} in layer {run.layer} is {twin.operator or 'one'} "
                    f"in layer {other.layer}"
                )

    def _described(self, note: Note, run: _Run) -> tuple[object, ...]:
        """A note as it looks from its layer."""
        layer = run.layer
        assert layer is not None
        born = self._born[note.storage]
        away = None if born.layer is None else born.layer - layer
        found = self._layer_in.match(note.module)
        module = note.module
        if found is not None:
            module = f"{int(found[2]) - layer} {module[found.end() :]}"
        return (
            note.is_free,
            note.num_bytes,
            note.phase,
            note.operator,
            note.in_forward_code,
            note.width,
            module,
            (born.number, away, born.place),
        )


def _runs(notes: Sequence[Note], marks: frozenset[int]) -> Iterator[_Run]:
    """Cuts notes into passes and runs."""
    number = -1
    layer: int | None = None
    direction = 0
    start = 0
    phase = ""
    for place, note in enumerate(notes):
        at = note.layer if note.layer >= 0 else None
        is_new = place in marks or note.phase != phase
        if is_new:
            phase, direction = note.phase, {"forward": 1, "backward": -1}.get(note.phase, 0)
            begins, at_first = True, at
        else:
            begins, at_first = False, None
        if not begins and at is not None and at != layer:
            if layer is None:
                # The pass reaches its first layer.
                yield _Run(number, layer, start, place)
                start, layer = place, at
                continue
            step = at - layer
            if direction == 0:
                direction = 1 if step > 0 else -1
            if step * direction == 1:
                yield _Run(number, layer, start, place)
                start, layer = place, at
                continue
            may_turn = note.phase not in ("forward", "backward")
            if may_turn and abs(step) >= _AGAINST:
                begins, at_first = True, at
                direction = 0
        if begins:
            if place:
                yield _Run(number, layer, start, place)
            number, start, layer = number + 1, place, at_first
    if notes:
        yield _Run(number, layer, start, len(notes))
