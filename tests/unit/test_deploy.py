"""The files of deploy/ name commands, options and variables that there are."""

from __future__ import annotations

import configparser
import os
import shlex
import subprocess
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


def test_kubernetes(monkeypatch):
    (deployment,) = (
        d for d in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()) if d["kind"] == "Deployment"
    )
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["args"][0] == "watersmeet"
    check(container["args"][1:], {e["name"]: e.get("value", "") for e in container["env"]}, monkeypatch)


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
    for name in ("WATERSMEET_CERTIFICATE", "WATERSMEET_KEY"):  # which have to be there
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
    assert all((DEPLOY / v).exists() for v in mounted if v.startswith("./") and v != "./certificate")
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
