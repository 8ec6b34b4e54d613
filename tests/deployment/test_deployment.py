"""Settings, keys, model files and the server app: everything of a deployment that needs no process."""

from __future__ import annotations

import io
import json
import signal
import stat
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="a deployment runs on Flower: pip install 'compfed[flower]'")

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from federation.flower.fake_grid import NOW, FakeGrid, written
from flwr.app import Context, RecordDict

import compfed as cf
from compfed.deployment import model_files, processes, site_node
from compfed.deployment.app_folder import new
from compfed.deployment.keys import make_keys
from compfed.deployment.operator import superlink
from compfed.deployment.server_app import fit
from compfed.deployment.settings import FederationSettings
from compfed.deployment.watching import Watch, watch
from compfed.federation import QUESTIONS, InProcess
from compfed.federation.flower import SiteSettings

SITES = ("north", "south")


def sites() -> cf.data.Sites:
    rng = np.random.default_rng(3)
    A = [rng.standard_normal((m, 3)) for m in (16, 20)]
    y = [(a @ [1.0, -1.0, 0.0] + 0.5 * rng.standard_normal(len(a)) > 0).astype(float) for a in A]
    return cf.data.from_arrays(A, y, list(SITES), columns=["age", "dose", "bmi"])


# --- settings ---


def test_a_new_federation_can_be_read_and_is_not_written_over(tmp_path):
    paths = new(tmp_path / "f", SITES, "fed.example.org:8443")
    settings = FederationSettings.read(tmp_path / "f")
    assert settings.sites == list(SITES)
    assert (settings.host, settings.port) == ("fed.example.org", "8443")
    assert type(settings.new_estimator()).__name__ == "FederatedLogisticRegressionCV"
    assert json.loads(json.dumps(settings.resolved(), default=str))["parameters"]["cv"] == 5
    for i, name in enumerate(SITES):
        site = SiteSettings.read(tmp_path / "f" / "sites" / name / "site.toml")
        assert (site.name, site.index) == (name, i)
    assert all(path.exists() for path in paths)
    with pytest.raises(cf.InputError, match=r"federation\.toml is there already"):
        new(tmp_path / "f", SITES)


WRONG: dict[str, tuple[str, str]] = {
    "estimator": ('sites = ["a"]\nestimator = "Lasso"', "estimator = 'Lasso': there are FederatedElasticNet"),
    "setting": ('sites = ["a"]\nestimater = "x"', "'estimater' is no setting of a federation; there are sites"),
    "sites": ('estimator = "FederatedLasso"', "sites must be a list of names"),
    "toml": ("sites = [", "is not TOML"),
    "patience": ('sites = ["a"]\nestimator = "FederatedLasso"\n[patience]\nattempts = 0', "attempts"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes_in_a_federation_toml_are_named(mistake, tmp_path):
    text, message = WRONG[mistake]
    (tmp_path / "federation.toml").write_text(text)
    with pytest.raises(cf.InputError, match=message):
        FederationSettings.read(tmp_path)


SITE = 'name = "a"\nindex = 0\ndata = "x.csv"\nlabel = "y"\nstate = "s"\n'
WRONG_SITE: dict[str, tuple[str, str]] = {
    "missing": ('name = "a"\nindex = 0', "'data' is missing"),
    "index": (SITE.replace("index = 0", "index = -1"), "index"),
    "setting": (SITE + "colour = 1", "'colour' is no setting of a site"),
    "refusal": (SITE + "[refuses]\nmodels = 1", "'models' is nothing a site can refuse"),
    "question": (SITE + '[refuses]\nquestions = ["Hessian"]', "'Hessian' is no question; the questions are Describe"),
}


@pytest.mark.parametrize("mistake", WRONG_SITE)
def test_mistakes_in_a_site_toml_are_named(mistake, tmp_path):
    text, message = WRONG_SITE[mistake]
    (tmp_path / "site.toml").write_text(text)
    with pytest.raises(cf.InputError, match=message):
        SiteSettings.read(tmp_path / "site.toml")


# --- keys ---


def test_keys_are_a_chain_a_client_accepts_and_secrets_are_secret(tmp_path):
    paths = {path.name: path for path in make_keys(tmp_path / "keys", "fed.example.org", SITES)}
    ca, server = (x509.load_pem_x509_certificate(paths[name].read_bytes()) for name in ("ca.crt", "server.pem"))
    server.verify_directly_issued_by(ca)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == ["fed.example.org", "127.0.0.1", "localhost"]
    for name in SITES:
        private: Any = load_ssh_private_key(paths[f"{name}.key"].read_bytes(), None)
        assert isinstance(private.curve, ec.SECP384R1)
        public: Any = load_ssh_public_key(paths[f"{name}.key.pub"].read_bytes())
        assert public.public_numbers() == private.public_key().public_numbers()
    assert {name for name, path in paths.items() if stat.S_IMODE(path.stat().st_mode) & 0o077} == {
        "ca.crt", "server.pem", "north.key.pub", "south.key.pub",
    }  # fmt: skip
    with pytest.raises(cf.InputError, match="has keys already"):
        make_keys(tmp_path / "keys", "127.0.0.1", SITES)
    new(tmp_path / "f", SITES)
    with pytest.raises(cf.InputError, match=r"has no server\.pem. Run: compfed federation keys"):
        superlink(FederationSettings.read(tmp_path / "f"))


# --- a model as files ---


def test_a_model_is_read_back_as_the_estimator(tmp_path):
    data = sites()
    model = cf.FederatedLogisticRegressionCV(n_alphas=3, eps=0.3, cv=2).fit_federation(InProcess(data))
    model_files.save(model, tmp_path)
    again = model_files.load(tmp_path)
    assert type(again) is type(model)
    X = np.concatenate(data.features)
    import pandas as pd

    frame = pd.DataFrame(X, columns=list(data.columns or ()))
    np.testing.assert_array_equal(again.predict_proba(frame), model.predict_proba(frame))
    assert again.alpha_ == model.alpha_
    assert again.classes_.tolist() == model.classes_.tolist()
    # the format of safetensors, read by hand
    raw = (tmp_path / "model.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    head = json.loads(raw[8 : 8 + size])
    start, stop = head["coef_"]["data_offsets"]
    assert head["coef_"]["dtype"] == "F64"
    assert size % 8 == 0
    np.testing.assert_array_equal(np.frombuffer(raw[8 + size :][start:stop]), np.ravel(model.coef_))
    with pytest.raises(cf.InputError, match="holds no model"):
        model_files.load(tmp_path / "nowhere")


@pytest.mark.parametrize("kind", ["int8", "uint16", "uint32", "bool", "float32", "str"])
def test_classes_of_every_kind_are_read_back(tmp_path, kind):
    X = np.random.default_rng(0).standard_normal((40, 3))
    y = (X[:, 0] > 0.1).astype(kind)
    model = cf.FederatedLogisticRegression(0.1).fit(X, y, sites=np.arange(40) % 2)
    model_files.save(model, tmp_path)
    again = model_files.load(tmp_path).predict(X)
    np.testing.assert_array_equal(again, model.predict(X))
    assert again.dtype.kind == model.predict(X).dtype.kind


# --- the server app ---


def settings_of(folder: Path, **more: Any) -> FederationSettings:
    parameters = {"n_alphas": 3, "eps": 0.3, "cv": 2}
    return FederationSettings(
        folder, list(SITES), "FederatedLogisticRegressionCV", "127.0.0.1:1", folder / "keys", parameters, NOW, **more
    )


def test_a_run_leaves_its_folder_and_goes_on_after_a_failure(tmp_path):
    grid = FakeGrid(written(tmp_path / "sites", sites()))
    settings, run = settings_of(tmp_path), tmp_path / "run"
    grid.meddle = lambda site, records, reply: None if len(grid.sent) > 6 else reply()
    with pytest.raises(cf.InputError, match="was sent 4 times"):
        fit(grid, settings, run)
    assert "was sent 4 times" in json.loads((run / "ended.json").read_text())["error"]
    grid.meddle = lambda site, records, reply: reply()
    fit(grid, settings, run)
    here = settings.new_estimator().fit_federation(InProcess(sites()))
    np.testing.assert_array_equal(model_files.load(run).coef_, here.coef_)
    ended = json.loads((run / "ended.json").read_text())
    assert ended["rounds"] == here.communication_.rounds
    assert json.loads((run / "config.json").read_text())["sites"] == list(SITES)
    trace = cf.Trace.load(run / "trace.npz")
    assert trace["round"][-1] == here.trace_["round"][-1]
    assert [event["what"] for event in trace.provenance["events"]] == [
        "no reply in time"
    ] * 8  # two sites, four times each

    class Ended:
        def poll(self) -> int:
            return 0

    screen = io.StringIO()
    watch(run, SITES, Ended(), screen)
    lines = screen.getvalue().splitlines()
    assert sum("!" in line for line in lines) == 8  # two sites, four times each
    assert len(lines) - 8 == ended["rounds"]
    assert "Describe, Moments" in lines[8]
    secret = np.asarray(sites().features[0][0]).tobytes()
    assert not any(secret in path.read_bytes() for path in run.rglob("*") if path.is_file())


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_server_app_of_the_documentation_runs(tmp_path, capsys):
    text = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
    names: dict[str, Any] = {}
    exec(compile(text.split("```python\n")[1].split("```")[0], "deploy.md", "exec"), names)
    grid = FakeGrid(written(tmp_path / "sites", sites()))
    names["app"](grid, Context(1, 1, {}, RecordDict(), {"folder": str(tmp_path / "run")}))
    score, *table = capsys.readouterr().out.splitlines()
    assert 0.0 < float(score) < 1.0
    assert "local: north" in "\n".join(table)
    assert (tmp_path / "run" / "messages.jsonl").exists()


def test_a_terminal_shows_a_line_per_site(tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    class Twice:
        looks = iter([None, None, 0])

        def poll(self) -> int | None:
            return next(self.looks)

    said = {
        "number": 3,
        "site": "north",
        "questions": ["Moments"],
        "bytes_up": 10,
        "bytes_down": 20,
        "seconds": 4.25,
        "time": 100.0,
    }
    lost = {"number": 4, "site": "south", "what": "not connected", "time": 101.0}
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal" / "00000003").touch()
    (tmp_path / "messages.jsonl").write_text(json.dumps(said) + "\n" + '{"half a li')
    (tmp_path / "events.jsonl").write_text(json.dumps(lost) + "\n")
    seen = Watch(tmp_path, SITES)
    assert len(seen.news(False)) == 2
    lines = [line.split() for line in seen.table(112.0).splitlines()]
    assert ["north", "12", "s", "ago", "4.2", "asked,", "message", "4"] in lines
    assert ["south", "-", "-", "not", "connected"] in lines
    screen = Terminal()
    monkeypatch.setattr("compfed.deployment.watching.PAUSE", 0.0)
    watch(tmp_path, SITES, Twice(), screen)
    first, second, last = screen.getvalue().split("\x1b[")[0], *screen.getvalue().split("F\x1b[J")[1:]
    assert "! message 4, site south: not connected" in first
    assert "not connected" in second  # the table, drawn again in the same place
    assert "3  north 4.2 s" in first
    assert last == ""


# --- a site's node ---


@pytest.fixture
def furnished(tmp_path):
    path = written(tmp_path, sites(), '[network]\nsuperlink = "h:1"\nca = "ca.crt"\nkey = "node.key"\nport = 9\n')[0]
    for name in ("ca.crt", "node.key"):
        (path.parent / name).write_text("x")
    return path


def test_a_site_says_what_leaves_before_anything_does(furnished):
    made, env, settings = site_node.command(furnished)
    said = site_node.what_leaves(settings)
    assert all(question.__name__ in said for question in QUESTIONS)
    assert "rows.csv stay here" in said
    assert made[3:5] == ["--superlink", "h:1"]
    assert "--insecure" not in made
    assert env["FLWR_TELEMETRY_ENABLED"] == "0"
    assert env["JAX_COMPILATION_CACHE_DIR"].startswith(str(furnished.parent))
    (furnished.parent / "node.key").unlink()
    with pytest.raises(cf.InputError, match=r"key = 'node\.key' is not there"):
        site_node.command(furnished)


def test_a_node_that_ends_is_started_again_and_the_reason_is_said(furnished, monkeypatch):
    script = furnished.parent / "node.py"
    script.write_text("print('Failed to activate the node'); raise SystemExit(305 % 256)")
    _, env, settings = site_node.command(furnished)
    monkeypatch.setattr(
        site_node, "command", lambda path, desk="": ([sys.executable, str(script), "", "", "h:1"], env, settings)
    )
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    said: list[str] = []

    def enough(_: float) -> None:
        if sum("Again in" in line for line in said) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", enough)
    with pytest.raises(KeyboardInterrupt):
        site_node.keep_running(furnished, said.append)
    assert sum("node started, dialling h:1" in line for line in said) == 3
    assert "it was not admitted. Either its key is not registered yet" in said[-1]


def test_everything_that_was_started_is_ended(tmp_path):
    """Also what a process has put in a group of its own, as Flower's SuperLink does, and what does not listen."""
    script = tmp_path / "parent.py"
    script.write_text(
        "import signal, subprocess, sys, time\n"
        "child = 'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)'\n"
        "made = subprocess.Popen([sys.executable, '-c', child], start_new_session=True)\n"
        "open(sys.argv[1], 'w').write(str(made.pid))\n"
        "time.sleep(600)\n"
    )
    process = processes.start(
        [sys.executable, str(script), str(tmp_path / "pid")], processes.environment(tmp_path / "home")
    )
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        time.sleep(0.05)
    child = int((tmp_path / "pid").read_text())
    assert processes.descendants(process.pid) == [child]
    processes.end(process, patience=0.5)
    assert process.poll() is not None
    assert not processes._alive(child)


def test_reasons_a_person_can_act_on(tmp_path):
    log = tmp_path / "node.log"
    for text, reason in {
        "[SSL: CERTIFICATE_VERIFY_FAILED]": "ask the operator for the ca.crt",
        "[code: 2004] Failed to activate SuperNode.": "its key is not registered yet",
        "anything else": "see ",
    }.items():
        log.write_text(text)
        assert reason in site_node.reason(log)
