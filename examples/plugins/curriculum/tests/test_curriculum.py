import torch
from curriculum import Curriculum, CurriculumSampler, order_of

from trainbus.testing import parametrize_with_checks


def by_label(sample):
    return float(sample["labels"])


@parametrize_with_checks([Curriculum, lambda: Curriculum(1, by_label)], two_processes=True)
def test_conforms(check):
    check()


def test_the_order():
    generator = torch.Generator().manual_seed(0)
    assert order_of(torch.tensor([3.0, 1.0, 2.0]), 0.0, generator).tolist() == [1, 2, 0]
    assert sorted(order_of(torch.arange(9.0), 1.0, generator).tolist()) == list(range(9))


def test_an_epoch_has_the_same_order_again():
    sampler = CurriculumSampler(torch.arange(20.0), epochs=2, seed=0)
    sampler.set_epoch(1)
    assert list(sampler) == list(sampler) != list(range(20))


def test_the_first_epoch_goes_from_easy_to_hard(tmp_path):
    from trainbus.testing import tiny_trainer

    trainer, seen = tiny_trainer(tmp_path, Curriculum(2, by_label), max_steps=8), []
    trainer.on("on_batch", lambda batch: seen.append(batch["labels"].tolist()))
    trainer.train()
    first, second = ([label for batch in epoch for label in batch] for epoch in (seen[:4], seen[4:]))
    assert first == sorted(first)
    assert sorted(second) == first != second
