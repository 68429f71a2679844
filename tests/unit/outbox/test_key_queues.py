from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from outbox.consumer.in_hand import Lanes


@dataclass(frozen=True)
class Item:
    key: str
    number: int

    @property
    def lane(self) -> bytes:
        return self.key.encode()

    @property
    def size(self) -> int:
        return self.number


def items(*keys: str) -> list[Item]:
    return [Item(key, number) for number, key in enumerate(keys)]


def test_take_with_one_of_the_key_worked_on_gives_others_only() -> None:
    a0, a1, b2, a3 = items("a", "a", "b", "a")
    lanes: Lanes[Item] = Lanes()
    lanes.add([a0, a1, b2, a3])
    assert lanes.take(1) == [a0]
    assert lanes.take(5) == [b2]
    assert lanes.held == 4
    lanes.release([a0])
    assert lanes.take(5) == [a1, a3]
    assert lanes.held == 3


def test_take_of_many_gives_those_of_one_key_together_in_order() -> None:
    given_items = items("a", "b", "a", "a")
    lanes: Lanes[Item] = Lanes()
    lanes.add(given_items)
    assert lanes.take(3) == given_items[:3]
    assert lanes.take(3) == []
    lanes.release(given_items[:2])
    assert lanes.take(3) == []  # one of the key is still worked on
    lanes.release([given_items[2]])
    assert lanes.take(3) == [given_items[3]]


def test_put_back_makes_items_the_next_of_their_keys_in_their_order() -> None:
    given_items = items("a", "b", "a", "b", "a")
    lanes: Lanes[Item] = Lanes()
    lanes.add(given_items)
    taken = lanes.take(4)
    lanes.put_back(taken)
    again = lanes.take(9)
    assert [item.number for item in again if item.key == "a"] == [0, 2, 4]
    assert [item.number for item in again if item.key == "b"] == [1, 3]
    assert lanes.held == 5


def test_put_back_keeps_the_order_between_keys() -> None:
    given_items = items("a", "b", "c", "b")
    lanes: Lanes[Item] = Lanes()
    lanes.add(given_items)
    lanes.put_back(lanes.take(3))
    assert lanes.take(9) == given_items


def test_drop_forgets_what_is_not_taken() -> None:
    a0, a1, b2 = items("a", "a", "b")
    lanes: Lanes[Item] = Lanes()
    lanes.add([a0, a1, b2])
    assert lanes.take(1) == [a0]
    lanes.take(0)
    lanes.drop(lambda item: item.key == "a")
    assert lanes.held == 2
    assert lanes.held_bytes == 0 + 2
    lanes.release([a0])
    assert lanes.take(5) == [b2]
    lanes.release([b2])
    assert lanes.held == 0


@given(st.lists(st.sampled_from("abc"), max_size=40), st.data())
def test_each_key_goes_in_order_and_by_one_worker_at_a_time(
    keys: list[str], data: st.DataObject
) -> None:
    lanes: Lanes[Item] = Lanes()
    given_items = items(*keys)
    coming = list(given_items)
    working: list[list[Item]] = []
    done: dict[str, list[int]] = defaultdict(list)
    while coming or working or lanes.has_ready:
        acts = ["add"] * bool(coming) + ["take"] * lanes.has_ready
        acts += ["release", "release", "put back"] * bool(working)
        act = data.draw(st.sampled_from(acts))
        if act == "add":
            lanes.add([coming.pop(0)])
        elif act == "take":
            taken = lanes.take(data.draw(st.integers(1, 4)))
            busy = {item.key for worker in working for item in worker}
            assert busy.isdisjoint(item.key for item in taken)
            working += [taken] * bool(taken)
        else:
            worker = working.pop(data.draw(st.integers(0, len(working) - 1)))
            if act == "put back":
                lanes.put_back(worker)
            else:
                for item in worker:
                    done[item.key].append(item.number)
                lanes.release(worker)
        assert lanes.held == len(given_items) - len(coming) - sum(map(len, done.values()))
        came = given_items[: len(given_items) - len(coming)]
        gone = sum(sum(numbers) for numbers in done.values())
        assert lanes.held_bytes == sum(item.size for item in came) - gone
    for key, numbers in done.items():
        assert numbers == [item.number for item in given_items if item.key == key]
    assert sum(map(len, done.values())) == len(given_items)
