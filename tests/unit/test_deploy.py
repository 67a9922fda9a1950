"""The files of deploy/ name commands, options and variables that there are."""

from __future__ import annotations

import configparser
import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
import yaml

import watersmeet
from watersmeet.cli.commands import app

DEPLOY = Path(__file__).parents[2] / "deploy"
COMMAND = typer.main.get_command(app)


def check(arguments, environment, monkeypatch):
    """A command line of `watersmeet` and its variables, without running it."""
    name, *rest = arguments
    command = COMMAND.commands[name]
    ours = {n: v for n, v in environment.items() if n.startswith("WATERSMEET_") and n != "WATERSMEET_MASTER"}
    assert ours.keys() <= {p.envvar for p in command.params}
    for variable, value in ours.items():
        monkeypatch.setenv(variable, value)
    found = command.make_context(name, list(rest)).params
    assert all(str(found[p.name]) == ours[p.envvar] for p in command.params if p.envvar in ours)


def run(*arguments, **environment):
    done = subprocess.run(
        ["sh", DEPLOY / "entrypoint.sh", *arguments],
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.splitlines()


@pytest.fixture
def programs(tmp_path):
    """A java and a spark-submit that say what they are given."""
    (tmp_path / "bin").mkdir()
    for name in ("java", "spark-submit"):
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\necho {name}\nprintf "%s\\n" "$@"\n')
        program.chmod(0o755)
    return {"SPARK_HOME": str(tmp_path), "JAVA_HOME": str(tmp_path)}


def test_the_image_starts_commands_drivers_and_executors(programs):
    assert run("echo", "a b") == ["a b"]
    driver = run("driver", "--class", "x y", SPARK_DRIVER_BIND_ADDRESS="10.0.0.1", **programs)
    assert driver[0] == "spark-submit"
    assert driver[-4:] == ["--deploy-mode", "client", "--class", "x y"]
    assert "spark.driver.bindAddress=10.0.0.1" in driver
    given = {
        "SPARK_JAVA_OPT_0": "-Da=b c",
        "SPARK_JAVA_OPT_1": "-Dd",
        "SPARK_EXECUTOR_MEMORY": "1g",
        "SPARK_DRIVER_URL": "spark://d",
        "SPARK_EXECUTOR_ID": "7",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_APPLICATION_ID": "app",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.2",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "pod",
    }
    executor = run("executor", **programs, **given)
    assert executor[:5] == ["java", "-Da=b c", "-Dd", "-Xms1g", "-Xmx1g"]
    assert executor[7] == "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
    assert dict(zip(executor[8::2], executor[9::2], strict=True)) == {
        "--driver-url": "spark://d",
        "--executor-id": "7",
        "--cores": "2",
        "--app-id": "app",
        "--hostname": "10.0.0.2",
        "--resourceProfileId": "0",
        "--podName": "pod",
    }


def test_kubernetes(monkeypatch, tmp_path):
    (deployment,) = (
        d for d in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()) if d["kind"] == "Deployment"
    )
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["args"][:2] == ["watersmeet", "serve"]  # which does not end by itself
    environment = {e["name"]: e.get("value", "") for e in container["env"]}
    for name in ("WATERSMEET_CERTIFICATE", "WATERSMEET_KEY"):
        file = tmp_path / Path(environment[name]).name
        file.touch()
        environment[name] = str(file)
    environment.pop("WATERSMEET_CACHE_DIR")  # which is read elsewhere
    scripts = [tmp_path / Path(name).name for name in container["args"][2:]]
    for script in scripts:
        script.touch()
    check(["serve", *map(str, scripts)], environment, monkeypatch)


def test_the_application_of_the_operator(monkeypatch):
    spec = yaml.safe_load((DEPLOY / "spark-application.yaml").read_text())["spec"]
    assert spec["mainApplicationFile"].endswith("/watersmeet/__main__.py")
    assert Path(watersmeet.__file__).with_name("__main__.py").exists()
    check(spec["arguments"], {}, monkeypatch)


def test_the_service(monkeypatch):
    unit = configparser.ConfigParser(strict=False)
    unit.optionxform = str
    unit.read_string((DEPLOY / "watersmeet.service").read_text())
    environment = dict(pair.split("=", 1) for pair in shlex.split(unit["Service"]["Environment"]))
    program, *arguments = shlex.split(unit["Service"]["ExecStart"])
    assert program.endswith("/watersmeet")
    check(arguments, environment, monkeypatch)


def test_containers(monkeypatch, tmp_path):
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = compose["services"]
    program, *arguments = services["watersmeet"]["command"]
    assert program == "watersmeet"
    environment = dict(services["watersmeet"]["environment"])
    for name in ("WATERSMEET_CERTIFICATE", "WATERSMEET_KEY"):  # which have to exist
        file = tmp_path / Path(environment[name]).name
        file.touch()
        environment[name] = str(file)
    script = tmp_path / "users.sql"
    script.touch()
    check([arguments[0], str(script)], environment, monkeypatch)
    assert (
        DEPLOY / services["watersmeet"]["build"]["context"] / services["watersmeet"]["build"]["dockerfile"]
    ).exists()
    mounted = [v.split(":")[0] for s in services.values() for v in s["volumes"]]
    assert all((DEPLOY / v).exists() for v in mounted if v.startswith("./") and not v.startswith("./certificate"))
    prometheus = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())
    assert all((DEPLOY / name).exists() for name in prometheus["rule_files"])
    (job,) = prometheus["scrape_configs"]
    host, _, port = job["static_configs"][0]["targets"][0].partition(":")
    assert host in services
    assert port == environment["WATERSMEET_HTTP_PORT"]
    rules = (DEPLOY / "prometheus-rules.yaml").read_text()
    assert f'up{{job="{job["job_name"]}"}}' in rules


def test_a_session_of_spark_connect_is_refused(tmp_path):
    connect_session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(watersmeet.Error, match="Spark Connect") as refused:
        watersmeet.connect(tmp_path / "db", spark=connect_session)
    assert refused.value.condition == "FEATURE_NOT_SUPPORTED"
    assert "without .remote(" in refused.value.hint


def documents(name):
    return list(yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8")))


def of_kind(name, kind):
    return [d for d in documents(name) if d["kind"] == kind]


def test_the_pod_runs_without_root_and_with_limits():
    (deployment,) = of_kind("kubernetes.yaml", "Deployment")
    assert deployment["spec"]["selector"]["matchLabels"].items() <= (
        deployment["spec"]["template"]["metadata"]["labels"].items()
    )
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == image_user()
    assert not container["securityContext"]["allowPrivilegeEscalation"]
    assert container["resources"]["limits"]["memory"]
    assert container["resources"]["requests"].keys() >= {"cpu", "memory"}
    assert pod["terminationGracePeriodSeconds"] > 25  # the driver takes that long at most


def image_user():
    """The user of the image, by its number."""
    (user,) = (line.split()[1] for line in dockerfile() if line.startswith("USER "))
    return int(user.split(":")[0])


def dockerfile():
    return (DEPLOY / "Dockerfile").read_text(encoding="utf-8").splitlines()


def test_probes_ask_ports_that_the_server_has():
    (deployment,) = of_kind("kubernetes.yaml", "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    ports = {p["name"]: p["containerPort"] for p in container["ports"]}
    environment = {e["name"]: e.get("value") for e in container["env"]}
    assert str(ports["https"]) == environment["WATERSMEET_HTTP_PORT"]
    probes = {kind: container[kind]["httpGet"] for kind in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {kind: probe["path"] for kind, probe in probes.items()} == {
        "startupProbe": "/livez",
        "livenessProbe": "/livez",
        "readinessProbe": "/readyz",
    }
    assert all(probe["port"] in ports and probe["scheme"] == "HTTPS" for probe in probes.values())
    (service,) = (s for s in of_kind("kubernetes.yaml", "Service") if s["metadata"]["name"] == "watersmeet")
    assert {(p["name"], p["port"]) for p in service["spec"]["ports"]} == set(ports.items())


def test_what_a_pod_names_is_mounted_and_in_the_manifest():
    text = (DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")
    (deployment,) = of_kind("kubernetes.yaml", "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
    assert mounts.keys() == {v["name"] for v in pod["volumes"]}
    environment = [e["value"] for e in container["env"] if e["name"].endswith(("CERTIFICATE", "KEY")) and "value" in e]
    for path in [*container["args"][2:], *environment]:
        assert str(Path(path).parent) in mounts.values(), path
    (config,) = of_kind("kubernetes.yaml", "ConfigMap")
    for volume in pod["volumes"]:
        if "configMap" in volume:
            assert volume["configMap"]["name"] == config["metadata"]["name"]
            assert {i["key"] for i in volume["configMap"]["items"]} <= config["data"].keys()
        if "secret" in volume:
            assert f" {volume['secret']['secretName']} " in text.split("apiVersion", 1)[0]
            assert volume["secret"]["defaultMode"] == 0o440
    accounts = {d["metadata"]["name"] for d in of_kind("kubernetes.yaml", "ServiceAccount")}
    assert pod["serviceAccountName"] in accounts


def kubernetes_command():
    """The Deployment's command and environment, and its scripts by their paths."""
    (deployment,) = of_kind("kubernetes.yaml", "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (config,) = of_kind("kubernetes.yaml", "ConfigMap")
    scripts = {Path(p).name: config["data"].get(Path(p).name, USERS) for p in container["args"][2:]}
    return container["args"], {e["name"]: e.get("value", "") for e in container["env"]}, scripts


def compose_command():
    """Command, environment and scripts of the server in containers."""
    service = documents("compose.yaml")[0]["services"]["watersmeet"]
    return service["command"], service["environment"], {Path(service["command"][2]).name: USERS}


def systemd_command():
    """Command and environment of the unit, which has no script."""
    unit = configparser.ConfigParser(strict=False)
    unit.optionxform = str
    unit.read_string((DEPLOY / "watersmeet.service").read_text(encoding="utf-8"))
    service = unit["Service"]
    command = ["watersmeet", *shlex.split(service["ExecStart"])[1:]]
    return command, dict(pair.split("=", 1) for pair in shlex.split(service["Environment"])), {}


USERS = "CREATE USER ann PASSWORD 'x' SUPERUSER;\nINSERT INTO restarts VALUES (1);\n"


@pytest.mark.slow
@pytest.mark.parametrize("manifest", [kubernetes_command, compose_command, systemd_command])
def test_each_start_with_the_same_command_resumes(manifest, tmp_path):
    """The first start runs the scripts; those after SIGTERM, SIGKILL and SIGINT only say that they have run."""
    (_, verb, *files), environment, scripts = manifest()
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute("CREATE TABLE restarts (a int)")
    for name, text in scripts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    ours = {n: v for n, v in environment.items() if n.startswith("WATERSMEET_")}
    for name in ("MASTER", "CERTIFICATE", "KEY", "CACHE_DIR", "PARALLELISM"):  # of the cluster
        ours.pop(f"WATERSMEET_{name}", None)
    ours |= {"WATERSMEET_PATH": "db", "WATERSMEET_RUNTIME": "inprocess", "WATERSMEET_HOST": "127.0.0.1"}
    ours |= {"WATERSMEET_PORT": "0", "WATERSMEET_HTTP_PORT": "0"}
    for ending, code in ((signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 0)):
        server = subprocess.Popen(
            [sys.executable, "-m", "watersmeet", verb, *(Path(f).name for f in files)],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **ours},
        )
        assert server.stderr is not None
        lines = iter(server.stderr.readline, "")
        before = list(itertools.takewhile(lambda line: "the console is at" not in line, lines))
        assert server.poll() is None, before
        notices = [line for line in before if line.startswith("NOTICE")]
        assert len(notices) == (0 if ending == signal.SIGTERM else len(scripts)), before
        server.send_signal(ending)
        assert server.wait(60) == code
        server.stderr.close()
    with watersmeet.connect(tmp_path / "db", read_only=True) as connection:
        assert connection.execute("SELECT count(*) FROM restarts").fetchall() == [(1 if scripts else 0,)]


def test_restarts_honor_exit_codes_or_do_not_claim_to():
    """2 and 3 persist after a restart. What a platform can't tell from other failures, the page says of it."""
    service = (DEPLOY / "watersmeet.service").read_text(encoding="utf-8")
    assert "RestartPreventExitStatus=2 3" in service
    page = (DEPLOY.parent / "docs" / "DEPLOYING.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| ([^|]+) \| [^|]+ \| ([^|:,]+)[^|]*\|$", page, re.MULTILINE))
    assert rows["systemd"].strip() == "yes"
    assert documents("compose.yaml")[0]["services"]["watersmeet"]["restart"] == "unless-stopped"  # any code
    assert documents("spark-application.yaml")[0]["spec"]["restartPolicy"]["type"] == "Always"
    assert {v.strip() for n, v in rows.items() if n.startswith(("compose", "YARN"))} == {"no"}


def test_the_image_has_what_the_package_declares():
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    copied = {source for line in dockerfile() if line.startswith("COPY ") for source in line.split()[1:-1]}
    assert {project["readme"], *project["license-files"], "pyproject.toml", "src"} <= copied
    allowed = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").split()
    for source in copied:
        assert (DEPLOY.parent / source).exists(), source
        assert f"!{source}" in allowed, source
    text = "\n".join(dockerfile())
    extras = re.search(r"^ARG EXTRAS=(.*)$", text, re.MULTILINE)
    assert extras is not None
    assert set(extras[1].split(",")) <= project["optional-dependencies"].keys()
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    targets = [v.split(":")[1] for v in compose["services"]["watersmeet"]["volumes"] if not v.startswith("./")]
    owned = re.search(r"install -d -o (\d+) .* (/data .*)$", text, re.MULTILINE)
    assert owned is not None
    assert int(owned[1]) == image_user()
    assert set(targets) <= set(owned[2].split())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_what_compose_needs_is_prepared(tmp_path, monkeypatch):
    shutil.copytree(DEPLOY, tmp_path / "deploy", ignore=shutil.ignore_patterns("certificate"))
    program = tmp_path / "watersmeet"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m watersmeet "$@"\n')
    program.chmod(0o755)
    subprocess.run(
        ["sh", "deploy/prepare.sh"],
        cwd=tmp_path,
        env={**os.environ, "WATERSMEET": str(program)},
        check=True,
        capture_output=True,
    )
    made = tmp_path / "deploy" / "certificate"
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    mounted = [v.split(":")[0] for s in compose["services"].values() for v in s["volumes"] if v.startswith("./")]
    assert all((tmp_path / "deploy" / v).exists() for v in mounted)
    environment = compose["services"]["watersmeet"]["environment"]
    files = [environment["WATERSMEET_CERTIFICATE"], environment["WATERSMEET_KEY"]]
    files += compose["services"]["watersmeet"]["command"][2:]
    assert all((made / Path(f).name).exists() for f in files)
    (job,) = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text(encoding="utf-8"))["scrape_configs"]
    assert (made / Path(job["basic_auth"]["password_file"]).name).exists()
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute((made / "users.sql").read_text(encoding="utf-8"))
        roles = {row[0] for row in connection.execute("SHOW ROLES")}
    assert {"ann", job["basic_auth"]["username"]} <= roles


def test_the_operators_driver_and_executors_have_the_same_secrets():
    spec = yaml.safe_load((DEPLOY / "spark-application.yaml").read_text(encoding="utf-8"))["spec"]
    assert spec["driver"]["envSecretKeyRefs"] == spec["executor"]["envSecretKeyRefs"]
    assert spec["restartPolicy"]["type"] == "Always"
    for part in ("driver", "executor"):
        assert spec[part]["podSecurityContext"]["runAsUser"] == image_user()
