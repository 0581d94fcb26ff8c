import json

import pytest

from hpctrain.cli.checks import checks

pytestmark = pytest.mark.serial


def row(host="a", cores=(0, 1, 2, 3), threads=1, **versions):
    return {
        "host": host, "local_rank": 0, "pid": 1, "cores": list(cores), "threads": threads,
        "gpus": 0, "versions": {"numpy": "2.4", **versions},
    }  # fmt: skip


def verdicts(rows, library="MPICH", environ=None):
    found = checks(rows, library, {} if environ is None else environ)
    return {check.name: (check.verdict, check.text) for check in found}


def test_a_rank_with_cores_of_its_own_is_well():
    found = verdicts([row(cores=[0, 1], threads=2), row(cores=[2, 3], threads=2)])

    assert {found[n][0] for n in ("mpi", "launch", "cores", "threads", "versions")} == {"OK"}


def test_ranks_that_are_not_bound_share_all_cores_alike():
    assert verdicts([row(), row()])["cores"][0] == "OK"


@pytest.mark.parametrize(
    ("rows", "name", "verdict", "words"),
    [
        ([row(cores=[0, 1])] * 3, "cores", "WARN", "share 2 cores"),
        ([row(cores=[0]), row(cores=[0]), row(cores=[2, 3])], "cores", "WARN", "them apart"),
        ([row(threads=4), row(threads=4)], "threads", "WARN", "2 rank(s) x 4 threads on 4"),
        ([row(), row(host="b", numpy="2.1")], "versions", "FAIL", "2.1 on rank 1"),
    ],
)
def test_what_is_wrong_is_named(rows, name, verdict, words):
    assert verdicts(rows)[name][0] == verdict
    assert words in verdicts(rows)[name][1]


def test_cores_of_other_hosts_are_not_shared():
    assert verdicts([row(cores=[0]), row(host="b", cores=[0])])["cores"][0] == "OK"


def test_a_launcher_that_mpi_does_not_see_fails():
    started = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0"}

    assert verdicts([row()], environ=started)["launch"][0] == "FAIL"
    assert verdicts([row()] * 4, environ=started)["launch"][0] == "OK"


def test_no_mpi_library_fails_with_the_remedy():
    assert verdicts([row()], library="")["mpi"] == (
        "FAIL",
        "mpi4py cannot load an MPI library; pip install 'hpctrain[mpich]', or load the site's "
        "MPI module",
    )


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [0, 3])
def test_one_rank_reports_on_all(hpctrain, ranks):
    ended = hpctrain(ranks, "doctor", SLURM_JWT="secret", OMP_PROC_BIND="false").end()

    assert (ended.code, ended.err) == (0, "")
    assert ended.out.count("doctor: what is here") == 1
    assert ended.out.count("local rank") == max(ranks, 1)
    assert ["OMP_PROC_BIND", "false"] in [line.split() for line in ended.out.splitlines()]
    assert "secret" not in ended.out
    assert "[OK]   launch: " in ended.out and "[FAIL]" not in ended.out


@pytest.mark.slow
def test_copies_that_do_not_know_of_each_other_fail_and_one_says_so(hpctrain):
    slurm = {"SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2"}

    first, second = (
        hpctrain(0, "doctor", "--json", **slurm, SLURM_PROCID=rank).end() for rank in "01"
    )

    assert (first.code, second.code) == (1, 1)
    assert second.said == ""
    found = {check["name"]: check for check in json.loads(first.out)["checks"]}
    assert found["launch"]["verdict"] == "FAIL"
    assert found["launch"]["text"].startswith("Slurm started 2 tasks but MPI sees 1 rank")
