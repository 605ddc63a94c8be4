"""The recipe for Kubernetes is valid and consistent, and its driver's command runs, if not on Kubernetes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from deltalake import DeltaTable

from broker_sim.cluster import SimCluster
from pyspark_rocketmq.cli.options import ConsumeSettings
from pyspark_rocketmq.cli.settings import load_settings
from tests.helpers.driver_process import running
from tests.helpers.kubernetes import what_schemas_say, what_the_linter_says
from tests.helpers.machines import SPARK_HOME
from tests.helpers.orders import produce_orders
from tests.helpers.quick_jvm import QUICK_JVM
from tests.packaging.checkout import ROOT

FOLDER = ROOT / "examples" / "kubernetes"
MANIFEST, DOCKERFILE = FOLDER / "consumer.yaml", FOLDER / "Dockerfile"
SITE_PACKAGES = "/opt/environment/lib/python3.12/site-packages"
SCRIPT = "pyspark_rocketmq/cli/__main__.py"
PATIENCE_S = 240.0


def objects() -> dict[tuple[str, str], Any]:
    found = yaml.safe_load_all(MANIFEST.read_text())
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def driver() -> Any:
    (container,) = pod()["containers"]
    return container


def pod() -> Any:
    return objects()["Deployment", "order-etl"]["spec"]["template"]["spec"]


def settings_of_spark() -> dict[str, str]:
    """The arguments of ``spark-submit``."""
    args = driver()["args"]
    ours = args[: args.index(f"{SITE_PACKAGES}/{SCRIPT}")]
    pairs = (each.removeprefix("--conf=").partition("=") for each in ours if each.startswith("--conf="))
    return {name: value for name, _, value in pairs}


def test_the_manifest_is_valid_by_kubernetes_schemas(tmp_path: Path) -> None:
    """And they are asked: a misspelt field is found."""
    (tmp_path / "misspelt.yaml").write_text(MANIFEST.read_text().replace("clusterIP", "clusterIp"))

    assert what_schemas_say(MANIFEST) == ""
    assert "'clusterIp' was unexpected" in what_schemas_say(tmp_path / "misspelt.yaml")


def test_the_image_recipe_passes_the_linter(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM debian\nCOPPY a b\n")

    assert what_the_linter_says(DOCKERFILE) == ""
    assert what_the_linter_says(tmp_path / "Dockerfile") != ""


def test_the_image_has_what_the_manifest_starts() -> None:
    recipe = DOCKERFILE.read_text()
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    spark = re.search(r'"pyspark==(.+?)"', (ROOT / "pyproject.toml").read_text())
    assert version
    assert spark

    assert f"FROM apache/spark:{spark[1]}-" in recipe
    assert f"COPY dist/pyspark_rocketmq-{version[1]}-py3-none-any.whl /tmp/" in recipe
    assert driver()["image"] == settings_of_spark()["spark.kubernetes.container.image"]


def test_spark_knows_every_setting_of_kubernetes_in_the_manifest() -> None:
    (jar,) = (SPARK_HOME / "jars").glob("spark-kubernetes_*.jar")
    with zipfile.ZipFile(jar) as archive:
        known = b"".join(
            archive.read(name)
            for name in archive.namelist()
            if name.startswith("org/apache/spark/deploy/k8s/Config")
        )
    mine = [name for name in settings_of_spark() if name.startswith("spark.kubernetes.")]

    assert mine
    assert [name for name in mine if re.sub(r"(secretKeyRef\.).*", r"\1", name).encode() not in known] == []


def test_the_objects_name_each_other_as_they_are_called() -> None:
    found = objects()
    mounted = {mount["name"] for mount in driver()["volumeMounts"]}
    secrets = {
        (one["secretKeyRef"]["name"], one["secretKeyRef"]["key"])
        for variable in driver()["env"]
        if "secretKeyRef" in (one := variable["valueFrom"])
    } | {tuple(value.split(":")) for name, value in settings_of_spark().items() if "secretKeyRef" in name}

    assert {volume["name"] for volume in pod()["volumes"]} == mounted
    for volume in pod()["volumes"]:
        assert "secret" not in volume or ("Secret", volume["secret"]["secretName"]) in found
        assert "configMap" not in volume or ("ConfigMap", volume["configMap"]["name"]) in found
    assert all(key in found["Secret", name]["stringData"] for name, key in secrets)
    assert ("ServiceAccount", pod()["serviceAccountName"]) in found
    service = found["Service", settings_of_spark()["spark.driver.host"].partition(".")[0]]
    assert service["spec"]["selector"] == found["Deployment", "order-etl"]["spec"]["selector"]["matchLabels"]
    ports = {port["name"]: str(port["port"]) for port in service["spec"]["ports"]}
    assert ports["driver"] == settings_of_spark()["spark.driver.port"]
    assert ports["block-manager"] == settings_of_spark()["spark.driver.blockManager.port"]


def test_the_settings_of_the_manifest_are_the_jobs(tmp_path: Path) -> None:
    conf = tmp_path / "consume.toml"
    conf.write_text(objects()["Secret", "order-etl-settings"]["stringData"]["consume.toml"])

    settings = load_settings(ConsumeSettings, "consume", conf, [])

    assert settings.instance_name == "order-etl-1"
    assert settings.sink == "s3://lake/orders"


@pytest.mark.driver
@pytest.mark.sim
@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_driver_s_command_consumes(wheel: Path, tmp_path: Path) -> None:
    """As in the image: the wheel is installed, Delta's jars are not there.
    Kubernetes is replaced by threads, the object store by a folder.
    """
    made = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made)], check=True)
    install = [sys.executable, "-m", "pip", "--python", str(made / "bin/python"), "install", "--quiet"]
    subprocess.run([*install, "--no-deps", "--no-index", str(wheel)], check=True)
    (packages,) = made.glob("lib/python*/site-packages")
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib"))
    (tmp_path / "listeners.py").write_text(objects()["ConfigMap", "order-etl-code"]["data"]["listeners.py"])

    with SimCluster(brokers=1, queues=4) as brokers:
        produce_orders(brokers.name_servers, "orders", 20)
        text = objects()["Secret", "order-etl-settings"]["stringData"]["consume.toml"]
        changes = {
            "rocketmq-namesrv.rocketmq:9876": brokers.name_servers,
            "/etc/order-etl/code": str(tmp_path),
            "s3://lake": str(tmp_path),
            "/var/order-etl": str(tmp_path),
        }
        for before, after in changes.items():
            assert before in text
            text = text.replace(before, after)
        (tmp_path / "consume.toml").write_text(text)
        command = driver()["args"]
        script = command.index(f"{SITE_PACKAGES}/{SCRIPT}")
        local = [str(SPARK_HOME / "bin/spark-submit"), "--master=local[2]", str(packages / SCRIPT)]
        rest = [each.replace("/etc/order-etl/settings", str(tmp_path)) for each in command[script + 1 :]]
        foreign = {"PYTHONPATH", "SPARK_CONF_DIR", "PYSPARK_DRIVER_PYTHON"}
        environment = {name: value for name, value in os.environ.items() if name not in foreign} | {
            "PYSPARK_PYTHON": str(made / "bin/python"),
            "JDK_JAVA_OPTIONS": QUICK_JVM,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        log = tmp_path / "log"
        with running(
            [*local, *rest, "--option", "trigger=availableNow"], log, folder=tmp_path, environment=environment
        ) as job:
            assert job.wait(PATIENCE_S) == 0, log.read_text()[-4000:]

    assert DeltaTable(str(tmp_path / "orders")).to_pyarrow_table().num_rows == 100
