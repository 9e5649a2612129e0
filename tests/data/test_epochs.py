"""The order of an epoch's batches: groups of them K times, fillers, and where a resumed run goes on."""

import argparse
import itertools
import math

import pytest
import torch
import toy_data
from fairseq.data.iterators import EpochBatchIterator, GroupedIterator
from fairseq.logging import metrics
from matrix_part import of_ten_seconds
from untrained import untrained

from fairseq_syntax.data.epochs import TrainingBatches, by_update
from fairseq_syntax.errors import SyntaxDataError


def test_groups_of_batches():
    assert by_update("abc", 2, 1) == list("aabbcc")
    assert by_update("abcd", 3, 2) == list("abababcdcdcd")
    assert by_update("abc", 2, 2) == [*"abab", [], "c", [], "c"]
    assert by_update("abcdef", 2, 4) == [*"abcdabcd", [], [], "e", "f", [], [], "e", "f"]
    assert by_update("abc", 2, 2, skip_remainder=True) == list("abab")
    assert by_update("abc", 1, 2, skip_remainder=True) == list("ab")
    assert by_update("abc", 1, 2) == list("abc")
    assert by_update([[1], [2], [3], []], 1, 2) == [[1], [2], [], [3]]  # of a process that has a batch less


class Numbers(torch.utils.data.Dataset):
    epoch = 1

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitem__(self, i):
        return i

    def __len__(self):
        return 10


def iterator(repeats, groups, shards=1, shard=0, batches=10, **options):
    base = EpochBatchIterator(
        Numbers(),
        list,
        [[i] for i in range(batches)],
        seed=1,
        num_shards=shards,
        shard_id=shard,
        reuse_dataloader=True,
        **options,
    )
    return TrainingBatches(base, 1, groups, repeats)


def numbers(chunk):
    return [x[0] for x in chunk if x]


def epoch(itr, group):
    return [numbers(chunk) for chunk in GroupedIterator(itr.next_epoch_itr(), group)]


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_each_update_is_repeated_on_its_own_batches(shards):
    seen = [[], []]
    for shard in range(shards):
        itr = iterator(3, [2, 1], shards, shard)
        epochs = epoch(itr, 2), epoch(itr, 1)
        for number, updates in enumerate(epochs):
            assert all(updates[i] == updates[i + 1] == updates[i + 2] for i in range(0, len(updates), 3))
            seen[number] += [x for update in updates for x in update]
        per_shard = math.ceil(10 / shards)
        assert [len(u) for u in epochs] == [3 * math.ceil(per_shard / 2), 3 * per_shard]
    assert [sorted(x) for x in seen] == [sorted([*range(10)] * 3)] * 2  # none more often than another


@pytest.mark.parametrize("shards, group, repeats", [(3, 1, 1), (4, 2, 1), (3, 2, 2)])
def test_grouped_shuffling_leaves_no_batch_out(shards, group, repeats):
    """fairseq drops the batches that are not one for each process, which are the longest."""
    itrs = [iterator(repeats, [group], shards, shard, grouped_shuffling=True) for shard in range(shards)]
    for _ in range(2):
        epochs = [epoch(itr, group) for itr in itrs]
        assert len({len(updates) for updates in epochs}) == 1
        assert sorted(x for updates in epochs for update in updates for x in update) == sorted([*range(10)] * repeats)


def stopped_after(updates, itr, group):
    """The updates of an epoch that is stopped, and the iterator's state."""
    reader = GroupedIterator(itr.next_epoch_itr(), group)
    return [numbers(next(reader)) for _ in range(updates)], itr.state_dict()


def test_resumed_in_the_middle_of_a_group():
    updates = epoch(iterator(3, [2]), 2)
    head, state = stopped_after(4, iterator(3, [2]), 2)
    resumed = iterator(3, [2])
    resumed.load_state_dict(state)
    assert head + epoch(resumed, 2) == updates


@pytest.mark.parametrize("before, after", list(itertools.permutations([(3, 2), (1, 2), (5, 2), (2, 3), (1, 1)], 2)))
def test_resumed_with_another_k_and_another_update_freq(before, after):
    """No batch of the epoch is left out, and only those of one group can come again."""
    for stop in (1, 2, 4):
        head, state = stopped_after(stop, iterator(before[0], [before[1]]), before[1])
        resumed = iterator(after[0], [after[1]])
        resumed.load_state_dict(state)
        tail = epoch(resumed, after[1])
        assert all(tail[i : i + after[0]] == [tail[i]] * after[0] for i in range(0, len(tail), after[0]))
        begun, rest = ({x for update in part for x in update} for part in (head, tail))
        assert begun | rest == set(range(10)) and len(begun & rest) <= before[1] + after[1] - 1


@pytest.mark.parametrize("before, after", list(itertools.permutations([1, 2, 3], 2)))
def test_resumed_by_another_number_of_processes(before, after):
    states = [stopped_after(2, iterator(2, [1], before, shard), 1) for shard in range(before)]
    begun = {x for head, _ in states for update in head for x in update}
    rest = set()
    for shard in range(after):
        resumed = iterator(2, [1], after, shard)
        resumed.load_state_dict(states[0][1])
        rest |= {x for update in epoch(resumed, 1) for x in update}
    assert begun | rest == set(range(10)) and len(begun & rest) < after


@pytest.mark.matrix(30)
@pytest.mark.parametrize("before, after", list(itertools.permutations(itertools.product([1, 2, 3], [1, 2, 4]), 2)))
def test_another_layout_leaves_out_another_remainder(before, after):
    """Where a run stopped near the end of an epoch, there may be nothing left of it."""
    for batches, repeats in itertools.product((9, 10), (1, 2)):
        options = {"batches": batches, "skip_remainder_batch": True}
        (shards, group), itr = before, iterator(repeats, [before[1]], before[0], 0, **options)
        if len(itr) < 2 * group:
            continue
        updates = len(itr) // group - 1
        _, state = stopped_after(updates, itr, group)
        done = updates // repeats * group * shards  # without the last group's where it was not whole
        resumed = iterator(repeats, [after[1]], after[0], 0, **options)
        resumed.load_state_dict(state)
        if before != after:
            shards, group = after
            rest = math.ceil((batches - done) / shards)  # batches of a process
            whole = (rest - (rest > 1)) // group
            assert resumed.next_epoch_idx == (1 if whole else 2)
        assert resumed.dataset.epoch == resumed.next_epoch_idx  # which --parse-dropout asks
        assert bool(epoch(resumed, group)) == bool(len(resumed))  # there may be no update in any epoch


def cut(size, shards=1, shard=0, seed=1, sentences=range(10)):
    """An iterator over the sentences in batches of a size."""
    batches = [list(sentences[i : i + size]) for i in range(0, len(sentences), size)]
    options = {"num_shards": shards, "shard_id": shard, "reuse_dataloader": True}
    return TrainingBatches(EpochBatchIterator(Numbers(), list, batches, seed=seed, **options), 1, [1])


def sentences_of(iterators, updates=None):
    """What all processes train on in so many updates, or to the epoch's end."""
    taken = [list(itertools.islice(itr.next_epoch_itr(), updates)) for itr in iterators]
    return [number for batches in taken for batch in batches for number in batch]


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("changed", [{"size": 1}, {"size": 5}, {"size": 2, "seed": 3}])
def test_resumed_with_other_batches_every_sentence_comes_once(shards, changed):
    """As with another ``--max-tokens``: the usual cure for a full memory."""
    first = [cut(2, shards, shard) for shard in range(shards)]
    seen = sentences_of(first, 2)
    state = first[0].state_dict()
    for stop in (1, None):  # and stopped a second time, and resumed as before
        resumed = [cut(**changed, shards=shards, shard=shard) for shard in range(shards)]
        for itr in resumed:
            itr.load_state_dict(state)
        seen += sentences_of(resumed, stop)
        if stop:
            state = resumed[0].state_dict()
            if state["epoch"] == 2:
                break
    assert sorted(seen) == list(range(10))
    assert sorted(sentences_of(resumed)) == list(range(10)), "the next epoch is whole"


@pytest.mark.parametrize("size", [2, 3])
def test_only_the_epochs_of_a_curriculum_are_in_the_order_of_length(size):
    """``--curriculum 1``; stopped in each epoch, and resumed with the same batches or with others, without it."""
    whole, states = cut(2), []
    for number in (1, 2, 3):
        itr = whole.next_epoch_itr(shuffle=number > 1)
        batches = [next(itr)]
        states.append((batches[0], whole.state_dict()))
        batches += itr
        assert (batches == sorted(batches)) == (number == 1)
        assert number == 1 or batches == list(cut_in(number).next_epoch_itr()), "as a run that begins in this epoch"
    for first, state in states:
        resumed = cut(size)
        resumed.load_state_dict(state)
        itr = resumed.next_epoch_itr()
        second = next(itr)
        again = cut(5)
        again.load_state_dict(resumed.state_dict())
        assert sorted([*first, *second, *sentences_of([again])]) == list(range(10))


def cut_in(epoch):
    """The iterator of a run that begins in an epoch."""
    itr = cut(2)
    itr.load_state_dict({"epoch": epoch})
    return itr


def test_resumed_on_other_data_in_the_middle_of_an_epoch():
    first = cut(2)
    sentences_of([first], 2)
    other = cut(2)
    other.dataset.__class__ = type("Fewer", (Numbers,), {"__len__": lambda self: 9})
    other.seed = 2
    with pytest.raises(SyntaxDataError):
        other.load_state_dict(first.state_dict())


def weights(state):
    return state["model"]


SYSTEMS = {
    "pascal": {"pascal_heads": 2, "parent_ignoring": 0.3, "criterion": "chunked_cross_entropy"},
    "ldd": {"arch": "ldd_transformer", "parse_dropout": 0.3, "num_workers": 1},
    "lasyn": {
        "arch": "lasyn_transformer",
        "criterion": "lasyn_em",
        "label_smoothing": None,
        "em_steps": 2,
        "tag_weight": 0,
        "latent_values": 3,
        "update_freq": 2,
    },
}


@of_ten_seconds
@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_run_in_parts_is_one_in_one_go(toy, tmp_path, system):
    """Stopped in epochs 1, 2 and 4 and at the end of epoch 2: the same parameters to the last bit."""
    options = {"max_tokens": 150, "encoder_layers": 1, "seed": 3, **SYSTEMS[system], "lr_scheduler": "inverse_sqrt"}
    # fairseq's seed is another in each epoch
    more = ["--update-ordered-indices-seed", "--fill-batches"] if system == "pascal" else []
    whole = toy_data.train(toy.data, tmp_path / "whole", *more, **options, max_epoch=4)
    updates = whole["optimizer_history"][-1]["num_updates"]
    assert updates % 4 == 0 and updates >= 12
    length = updates // 4
    for stop in (length // 2, length + 2, 2 * length, 3 * length + 1):
        toy_data.train(toy.data, tmp_path / "parts", *more, **options, max_epoch=4, max_update=stop)
    parts = toy_data.train(toy.data, tmp_path / "parts", *more, **options, max_epoch=4)
    assert parts["optimizer_history"][-1]["num_updates"] == updates
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(parts)[name]), name


def test_processes_that_share_three_batches_validate_as_one(toy):
    """fairseq-validate gives one of two processes an empty batch, of which it adds up what is logged."""
    loaded = untrained(toy.data, "pascal_transformer")
    task = loaded.task
    task.load_dataset("valid")
    dataset, losses = task.dataset("valid"), []
    criterion = task.build_criterion(argparse.Namespace(criterion="cross_entropy", sentence_avg=False))
    size = -(-len(dataset) // 3)
    for shards in (1, 2):
        logs = []
        for shard in range(shards):
            options = {"max_sentences": size, "num_shards": shards, "shard_id": shard, "disable_iterator_cache": True}
            batches = list(task.get_batch_iterator(dataset, **options).next_epoch_itr(shuffle=False))
            logs += [task.valid_step(batch, loaded.model, criterion)[2] for batch in batches]
        with metrics.aggregate(new_root=True) as actual:
            task.reduce_metrics(logs, criterion)
        losses.append(actual["loss"].avg)
        assert len(logs) == shards + 2
    assert losses == [pytest.approx(losses[0])] * 2
