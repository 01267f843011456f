"""A plan on a real Ray cluster gives the tables of a single process, also when a worker is killed."""

import copy
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from tiny_models import tiny

import vitrail
from vitrail.api.many import Batch, PartWorker
from vitrail.errors import EngineError, InputError, OptionError
from vitrail.evaluate import bench
from vitrail.evaluate.bench.opened import RunSettings
from vitrail.evaluate.bench.plan import Unit
from vitrail.evaluate.bench.worker import Worker

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'vitrail[ray]'")

from vitrail.evaluate.bench import engines_ray  # noqa: E402  (needs ray)
from vitrail.evaluate.bench.engines_ray import on_loopback, ray_engine  # noqa: E402

ONE, TWO = bench.Cluster(workers=1), bench.Cluster(workers=2)


@pytest.fixture(autouse=True)
def _one_thread():
    """As in Ray's workers, so that sums are taken in the same order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tables(path):
    return [bench.render(bench.tables(path), form).encode() for form in ("markdown", "latex", "csv")]


def watched(worker, folder, caught):
    """The worker, but each unit leaves the process's id behind, and the first of `caught` waits for its end."""

    # Defined here, so that it travels by value: a worker cannot import this file.
    def work(unit):
        import os
        import time

        key = unit.keys[0]
        with (folder / key).open("a") as file:
            file.write(f"{os.getpid()}\n")
        if key == caught and len((folder / key).read_text().split()) == 1:
            (folder / "caught").write_text(str(os.getpid()))
            time.sleep(300)
        return worker(unit)

    return work


def kill_the_caught(folder):
    limit = time.monotonic() + 300
    while time.monotonic() < limit:
        found = folder / "caught"
        if found.exists() and found.read_text():
            os.kill(int(found.read_text()), signal.SIGKILL)
            return
        time.sleep(0.05)


@pytest.mark.usefixtures("apart")
def test_after_a_worker_is_killed_the_table_has_the_bytes_of_a_single_process(plan_of, text_plan_of, tmp_path, capfd):
    images, texts = plan_of(), text_plan_of()
    plan = plan_of(
        models=images.models + texts.models,
        data=images.data + texts.data,
        protocols=images.protocols + texts.protocols,
        batch=1,
    )
    bench.run(plan, tmp_path / "alone.db")
    folder = tmp_path / "seen"
    folder.mkdir()

    def engine(units, worker):
        yield from ray_engine(units, watched(worker, folder, "pug_3"), cluster=TWO)

    killer = threading.Thread(target=kill_the_caught, args=(folder,), daemon=True)
    killer.start()
    with pytest.warns(UserWarning, match=r"another one does its unit, .*vit on pets, examples pug_3 to pug_3"):
        found = bench.run(plan, tmp_path / "ray.db", engine=engine)
    killer.join()
    seen = {path.name: path.read_text().split() for path in folder.iterdir() if path.name != "caught"}
    assert found.fresh == found.done == 6 + 8
    assert {key: len(pids) for key, pids in seen.items()} == {key: 1 + (key == "pug_3") for key in seen}
    assert seen["pug_3"][0] != seen["pug_3"][1]
    assert 2 <= len({pid for pids in seen.values() for pid in pids}) <= 3  # two, and one in place of the killed
    assert capfd.readouterr().out == ""
    assert not ray.is_initialized()
    assert tables(tmp_path / "ray.db") == tables(tmp_path / "alone.db")
    again = bench.run(plan, tmp_path / "ray.db", engine=ray_engine)
    assert (again.fresh, again.done) == (0, 14)


@pytest.fixture
def cluster():
    """A cluster of the caller's own, with two GPUs on paper; all tests that ask for it share it."""
    if ray.is_initialized():
        return
    with on_loopback():
        ray.init(
            address="local",
            num_cpus=2,
            num_gpus=2,
            include_dashboard=False,
            object_store_memory=engines_ray.OBJECTS,
            _node_ip_address="127.0.0.1",
            log_to_driver=False,
            logging_level="error",
        )


@pytest.fixture
def apart():
    """No connection to a cluster."""
    ray.shutdown()


@pytest.fixture(autouse=True, scope="module")
def _shut_down():
    yield
    ray.shutdown()


def units(*keys):
    return [Unit(bench.ModelSpec("vit"), bench.DataSpec("pets"), (key,), (0,), ()) for key in keys]


def failing(how):
    """Work that is done at once, but for the unit `bad`."""

    def work(unit):
        import os

        from vitrail.evaluate.bench.plan import Finished

        if unit.keys == ("bad",):
            if how == "dies":
                os._exit(1)
            raise InputError("too dark") if how == "refuses" else ZeroDivisionError("a bug")
        return Finished(unit, ())

    return work


@pytest.mark.parametrize(("how", "reason"), [("dies", "The actor died"), ("breaks", r"ZeroDivisionError\('a bug'\)")])
@pytest.mark.usefixtures("cluster")
def test_a_unit_no_worker_survives_is_named(how, reason):
    found = []
    with pytest.warns(UserWarning, match="a worker was lost") as lost, pytest.raises(EngineError) as caught:
        found.extend(ray_engine(units("good", "bad"), failing(how), cluster=ONE))
    assert [finished.unit.keys for finished in found] == [("good",)]
    assert caught.match(rf"3 workers failed, .* at the same unit, vit on pets, examples bad to bad: {reason}")
    assert len(lost) == 2
    assert ray.is_initialized()  # the caller's cluster goes on


@pytest.mark.usefixtures("cluster")
def test_what_a_worker_refuses_is_not_tried_again():
    with pytest.raises(InputError, match=r"^too dark$"):
        list(ray_engine(units("bad"), failing("refuses"), cluster=TWO))


@pytest.mark.usefixtures("cluster")
def test_more_workers_than_there_is_room_for_take_no_unit():
    keys = [f"{number}" for number in range(5)]
    found = list(ray_engine(units(*keys), failing("never"), cluster=bench.Cluster(workers=4)))
    assert sorted(finished.unit.keys[0] for finished in found) == keys


@pytest.mark.usefixtures("cluster")
def test_workers_on_cuda_share_gpus():
    worker = Worker(RunSettings(device="cuda:1"))
    crew = engines_ray._ActorPool(worker, bench.Cluster(gpu_share=1 / 3))
    assert crew.needs == {"num_cpus": 1, "num_gpus": 1 / 3}
    assert crew.size == 6
    assert crew.worker == Worker(RunSettings(device="cuda"))
    assert engines_ray._ActorPool(Worker(RunSettings()), bench.Cluster()).size == 2


def is_running(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.usefixtures("cluster")
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads processes from /proc")
def test_a_worker_with_a_gpu_opens_the_model_once_for_all_parts_and_ends_with_the_run(monkeypatch, tmp_path):
    """The GPUs of this cluster are on paper."""
    monkeypatch.setattr(PartWorker, "on_cuda", True)
    model, x = copy.deepcopy(tiny("timm_vit")), torch.rand(4, 3, 64, 64).double()

    class Opened(type(model)):
        """Writes down which process opens it."""

        def __setstate__(self, state):
            super().__setstate__(state)
            with (self.folder / "opened").open("a") as file:
                file.write(f"{os.getpid()}\n")

    model.__class__, model.folder = Opened, tmp_path
    batches = [Batch([str(i)], x[i : i + 1].clone) for i in range(4)]
    found = vitrail.explain_many(
        model, batches, "gae", output=tmp_path / "maps", part_size=1, progress=False, engine="ray", workers=1
    )
    assert found.explained == 4
    (process,) = map(int, (tmp_path / "opened").read_text().split())
    limit = time.monotonic() + 60
    while is_running(process) and time.monotonic() < limit:
        time.sleep(0.1)
    assert not is_running(process)
    assert ray.is_initialized()


@pytest.mark.usefixtures("cluster")
def test_a_part_whose_worker_died_is_explained_by_another_one(tmp_path):
    model, x = copy.deepcopy(tiny("timm_vit")), torch.rand(5, 3, 64, 64).double()

    def load(number):
        import os

        if number == 1 and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os._exit(1)
        return x[2 * number : 2 * number + 2]

    batches = [Batch(["a", "b"], partial(load, 0)), Batch(["c", "d"], partial(load, 1)), Batch(["e"], partial(load, 2))]
    how = {"part_size": 2, "progress": False}
    with pytest.warns(UserWarning, match="a worker was lost; another one does its unit, part 1 of the data set"):
        found = vitrail.explain_many(model, batches, "gae", output=tmp_path / "there", engine="ray", workers=1, **how)
    assert found.explained == 5
    here = vitrail.explain_many(model, batches, "gae", output=tmp_path / "here", **how)
    assert found.table().equals(here.table())


def test_a_plan_for_gpus_on_a_cluster_without_is_refused():
    with pytest.raises(EngineError, match=r"each worker needs num_cpus 1, num_gpus 1.0, but the cluster has CPU 4"):
        engines_ray._places({"CPU": 4, "node:127.0.0.1": 1.0}, {"num_cpus": 1, "num_gpus": 1.0})


@pytest.mark.usefixtures("cluster")
def test_workers_of_other_versions_are_refused(monkeypatch):
    monkeypatch.setattr(engines_ray, "versions", lambda: {"vitrail": "0.0"})
    with pytest.raises(EngineError, match=r"a worker has .*torch .*, but here is vitrail 0.0"):
        list(ray_engine(units("good"), failing("never"), cluster=TWO))


@pytest.mark.usefixtures("cluster")
def test_a_process_connected_elsewhere_is_told_so():
    with pytest.raises(EngineError, match=r"already connected to the Ray cluster at .*, not to 127.0.0.1:9"):
        list(ray_engine(units("a"), failing("never"), cluster=bench.Cluster(address="127.0.0.1:9")))
    assert ray.is_initialized()


@pytest.mark.usefixtures("apart")
def test_a_cluster_that_runs_already_is_used_and_left_running(tmp_path):
    script = """
import ray
from vitrail.evaluate.bench import Cluster
from vitrail.evaluate.bench.engines_ray import connected
with connected(Cluster(workers=1)):
    print(ray.get_runtime_context().gcs_address, flush=True)
    input()
    print(ray.cluster_resources()["CPU"], flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path, text=True
    ) as other:
        cluster = bench.Cluster(address=other.stdout.readline().strip())
        with on_loopback():  # where that cluster listens
            found = list(ray_engine(units("a", "b", "c"), failing("never"), cluster=cluster))
        assert not ray.is_initialized()
        assert other.communicate("\n", timeout=300)[0] == "1.0\n"
    assert [finished.unit.keys for finished in found] == [("a",), ("b",), ("c",)]


@pytest.mark.usefixtures("apart")
def test_an_address_where_nothing_answers_is_said():
    with pytest.raises(EngineError, match=r"no Ray cluster can be reached at 127.0.0.1:9"), on_loopback():
        list(ray_engine(units("a"), failing("never"), cluster=bench.Cluster(address="127.0.0.1:9")))


@pytest.mark.usefixtures("apart")
def test_a_cluster_of_our_own_ends_when_the_reader_breaks_off():
    found = ray_engine(units("a", "b"), failing("never"), cluster=TWO)
    next(found)
    assert ray.is_initialized()
    found.close()
    assert not ray.is_initialized()


def test_an_error_in_the_driver_closes_the_engine(plan_of, tmp_path):
    closed = []

    def engine(units, worker):
        try:
            yield from map(worker, units)
        finally:
            closed.append(True)

    def watch(progress):
        assert not closed
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        bench.run(plan_of(), tmp_path / "r.db", engine=engine, watch=watch)
    assert caught.traceback
    assert closed == [True]


def test_options_that_make_no_sense_are_refused():
    with pytest.raises(OptionError, match="the engine local has no workers elsewhere"):
        bench.find_engine("local", TWO)
    with pytest.raises(OptionError, match="workers=0"):
        bench.Cluster(workers=0)
    with pytest.raises(OptionError, match=r"gpu_share=1.5"):
        bench.Cluster(gpu_share=1.5)
