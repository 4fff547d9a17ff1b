"""Turns the notes of one step at two micro-batch sizes into events with affine sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autotune.cost.memory.trace import Event, Events, Kind, Phase, Size
from autotune.tracing.recorder import Note

SIZES = (2, 4)
"""Micro-batch sizes that are traced. One row alone takes other paths through some operators."""

_ALIGNMENT_BYTES = 512
"""What a storage may lack of whole samples."""

Notes = Sequence[Note]


class Mismatch(Exception):
    """Two steps do not do the same; the message says where they part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """What is known of storages beyond their notes."""

    kinds: Mapping[int, Kind]
    """By number, where it is certain: weights, gradients, optimizer state."""
    output_width: int | None = None
    """Last dimension of the model's logits."""


@dataclass
class Pair:
    """Reads two recordings of the same thing side by side and numbers their storages alike.

    Segments are given in their order; storages of earlier ones may be freed in later ones.
    """

    labels: Labels
    _first: dict[int, int] = field(default_factory=dict)
    """Number of a storage in the events, by that in the first recording."""
    _second: dict[int, int] = field(default_factory=dict)
    _allocations: list[Event] = field(default_factory=list)
    """The events that allocated, by number."""

    def setup(self, notes: Notes) -> Events:
        """What was there before, and is the same for both."""
        events = []
        for note in notes:
            self._first[note.storage] = self._second[note.storage] = len(self._allocations)
            if note.phase == "optimizer":
                # An optimizer may have its state before it has stepped.
                before = note._replace(phase="setup")
                events.append(self._allocated(before, _constant(note), "optimizer"))
            else:
                events.append(self._allocated(note, _constant(note), "weights"))
        return tuple(events)

    def both(self, notes: Notes, others: Notes) -> Events:
        """A segment at both sizes.

        Raises:
            Mismatch: They differ, or a size is not affine.
        """
        kinds = _kinds(notes, self.labels)
        events = []
        for note, other in zip(notes, others, strict=False):
            if not _is_same(note, other):
                raise Mismatch(f"{_words(note)} at one size, {_words(other)} at the other")
            if note.is_free:
                number = self._first[note.storage]
                if self._second[other.storage] != number:
                    raise Mismatch(f"storages go in another order in {note.phase}")
                events.append(self._freed(number, note))
            else:
                number = len(self._allocations)
                self._first[note.storage] = self._second[other.storage] = number
                events.append(self._allocated(note, _affine(note, other), kinds[note.storage]))
        if len(notes) != len(others):
            raise Mismatch(f"{len(notes)} allocations and frees at one size, {len(others)} more")
        return tuple(events)

    def second_only(self, notes: Notes) -> Events:
        """A segment whose own storages do not depend on the size, from the second recording."""
        kinds = _kinds(notes, self.labels)
        events = []
        for note in notes:
            if note.is_free:
                events.append(self._freed(self._second[note.storage], note))
            else:
                self._second[note.storage] = len(self._allocations)
                events.append(self._allocated(note, _constant(note), kinds[note.storage]))
        return tuple(events)

    def alone(self, notes: Notes, usual: Events, gradients: Mapping[int, int]) -> Events | None:
        """A segment of a single row, where it does something else than the usual one says of it.

        Args:
            notes: Of the single row.
            usual: The same segment at both sizes.
            gradients: Storages of the single row's gradients → those of the same parameters in the
                first recording, since both go in the same update.
        """
        if len(notes) == len(usual) and all(
            note.is_free == event.is_free
            and (note.is_free or bool(note.most_bytes) or note.num_bytes == event.size.at(1))
            for note, event in zip(notes, usual, strict=True)
        ):
            return None
        kinds = _kinds(notes, self.labels)
        numbers: dict[int, int] = {}
        events = []
        for note in notes:
            if note.is_free:
                events.append(self._freed(numbers.pop(note.storage), note))
                continue
            event = self._allocated(note, _constant(note), kinds[note.storage])
            if note.storage in gradients:
                event = replace(event, storage=self._first[gradients[note.storage]])
            else:
                numbers[note.storage] = event.storage
            events.append(event)
        ends = (replace(self._allocations[number], is_free=True) for number in numbers.values())
        return (*events, *ends)

    def numbered(self, by_storage: Mapping[int, int]) -> Mapping[int, int]:
        """The same by the numbers of the events instead of those of the first recording."""
        return {self._first[storage]: value for storage, value in by_storage.items()}

    def repeated(self, segment: Events, put_in_place: Mapping[int, int]) -> Events:
        """The same segment once more, where gradients are there already and are added to.

        A gradient is then a storage that goes once it is added.

        Args:
            segment: Of a first micro-batch.
            put_in_place: By the number of a gradient, after how many events it is put in place,
                in a first micro-batch, or added, in a later one.
        """
        added: dict[int, list[int]] = {}
        for storage, place in put_in_place.items():
            added.setdefault(place, []).append(storage)
        numbers: dict[int, int] = {}
        events: list[Event] = []

        def end(storage: int) -> None:
            if (number := numbers.pop(storage, None)) is not None:
                events.append(replace(self._allocations[number], is_free=True))

        for place, event in enumerate(segment):
            for storage in added.get(place, ()):
                end(storage)
            if event.is_free:
                if (number := numbers.pop(event.storage, None)) is not None:
                    events.append(replace(event, storage=number))
                continue
            kind: Kind = "temporary" if event.kind == "gradients" else event.kind
            again = replace(event, storage=len(self._allocations), kind=kind)
            self._allocations.append(again)
            events.append(again)
            numbers[event.storage] = again.storage
        for storage in list(numbers):
            end(storage)
        return tuple(events)

    def new(self, notes: Notes, kind: Kind) -> Events:
        """Allocations that no segment frees."""
        return tuple(self._allocated(note, _constant(note), kind) for note in notes)

    def _allocated(self, note: Note, size: Size, kind: Kind) -> Event:
        event = Event(
            storage=len(self._allocations),
            is_free=False,
            size=size,
            phase=note.phase,
            kind=kind,
            module=note.module,
            operator=note.operator.replace("::", "."),
        )
        self._allocations.append(event)
        return event

    def _freed(self, number: int, note: Note) -> Event:
        allocation = self._allocations[number]
        return Event(
            storage=number,
            is_free=True,
            size=allocation.size,
            phase=note.phase,
            kind=allocation.kind,
            module=allocation.module,
            operator=allocation.operator,
        )


def closing(notes: Iterable[Note], alive: Iterable[int], phase: Phase) -> list[Note]:
    """Notes that free what notes allocated and what is alive after them."""
    left = set(alive)
    return [
        note._replace(is_free=True, phase=phase)
        for note in notes
        if not note.is_free and note.storage in left
    ]


def _is_same(note: Note, other: Note) -> bool:
    return (note.is_free, note.phase, note.module, note.operator) == (
        other.is_free,
        other.phase,
        other.module,
        other.operator,
    )


def _words(note: Note) -> str:
    verb = "something is freed" if note.is_free else note.operator or "something is allocated"
    return f"{verb} in {note.module or 'the model'} ({note.phase})"


def _constant(note: Note) -> Size:
    return Size(constant_bytes=note.num_bytes, most_bytes=note.most_bytes or None)


def _affine(note: Note, other: Note) -> Size:
    """The line through the sizes at both micro-batch sizes.

    Raises:
        Mismatch: It would be below zero without any sample: the storage grows faster than the
            micro-batch, as that of all pairs of samples does.
    """
    low, high = SIZES
    per_sample = (other.num_bytes - note.num_bytes) / (high - low)
    if note.most_bytes and note.most_bytes != other.most_bytes:
        raise Mismatch(f"{_words(note)} that stops to grow at another size")
    constant = note.num_bytes - per_sample * low
    if -_ALIGNMENT_BYTES <= constant < 0:
        # The last row of an aligned tensor is not filled up.
        constant = 0
    if constant < 0 or per_sample < 0:
        raise Mismatch(f"{_words(note)} with a size that is not proportional to the micro-batch")
    return Size(
        constant_bytes=constant,
        bytes_per_sample=per_sample,
        most_bytes=note.most_bytes or None,
    )


def _kinds(notes: Notes, labels: Labels) -> dict[int, Kind]:
    kinds: dict[int, Kind] = {}
    in_forward: set[int] = set()
    for note in notes:
        number = note.storage
        if number in labels.kinds:
            kinds[number] = labels.kinds[number]
        elif not note.is_free:
            kinds[number] = "logits" if _is_logits(note, labels) else "temporary"
            if note.in_forward_code:
                in_forward.add(number)
        elif number in in_forward and not note.in_forward_code and kinds[number] == "temporary":
            # It outlived the forward pass that made it.
            kinds[number] = "activations"
    return kinds


def _is_logits(note: Note, labels: Labels) -> bool:
    is_wide = labels.output_width is not None and note.width == labels.output_width
    in_a_layer = any(part.isdigit() for part in note.module.split("."))
    return is_wide and not in_a_layer
