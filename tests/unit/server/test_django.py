"""Django: a project of five models gives from the server what it gives from PostgreSQL."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.clients import check_result, packages, ran

PROJECT = Path(__file__).with_name("django")


def answers(environment: dict[str, str], path: Path) -> dict[str, object]:
    """What the project answers to its questions, after all migrations, backwards and forwards."""
    environment = {**environment, "DJANGO_SETTINGS_MODULE": "settings"}

    def manage(*arguments: str) -> str:
        return ran(PROJECT, "-m", "django", *arguments, path=path, environment=environment)

    assert "No changes detected" in manage("makemigrations", "--check", "--dry-run")
    manage("migrate")
    assert manage("showmigrations", "--plan").count("[X]") == manage("showmigrations", "--plan").count("[")
    return json.loads(ran(PROJECT, "exercise.py", path=path, environment=environment))


@pytest.mark.slow
@pytest.mark.long
def test_models_migrations_and_the_admin_site(serving, postgres):
    path, version = packages("django", 40)
    served = serving()
    here = {"SHOP_HOST": "127.0.0.1", "SHOP_PORT": str(served.server.port), "SHOP_USER": "ann", "SHOP_NAME": "shop"}
    found = answers({**here, "SHOP_OPTIONS": "-c dialect=postgres"}, path)
    with postgres.connect() as connection:
        info = connection.info
        there = {"SHOP_HOST": info.host, "SHOP_PORT": str(info.port), "SHOP_USER": info.user, "SHOP_NAME": info.dbname}
        wanted = answers({**there, "SHOP_PASSWORD": info.password}, path)
    assert not [name for name, answer in wanted.items() if isinstance(answer, str)]  # an error
    differing = [name for name in wanted if found[name] != wanted[name]]
    assert {name: found[name] for name in differing} == {name: wanted[name] for name in differing}
    check_result(
        "Django",
        version=version,
        ran="makemigrations, migrate of its own apps and of 21 operations, questions of the ORM and the admin site",
        passed=len(found),
        of=len(wanted),
        refused={},
    )
