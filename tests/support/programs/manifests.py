"""Checks the Kubernetes manifests in a folder: manifests.py PROGRAM FOLDER"""

import glob, subprocess, sys, yaml
program, folder = sys.argv[1:]
try:
    import kubernetes_validate
except ImportError:
    kubernetes_validate = None
    print("skipped: the schemas of Kubernetes (PyPI: kubernetes-validate)")
kinds = {"Secret": "v1", "Service": "v1", "PersistentVolumeClaim": "v1", "Deployment": "apps/v1", "DaemonSet": "apps/v1", "Job": "batch/v1"}
objects = []
for file in sorted(glob.glob(folder + "/*.yaml")):
    text = open(file).read()
    assert text.startswith("# Not run on a cluster"), file
    objects += [(file, it) for it in yaml.safe_load_all(text) if it]
secrets = {it["metadata"]["name"]: it.get("stringData", {}) for _, it in objects if it["kind"] == "Secret"}
claims = {it["metadata"]["name"] for _, it in objects if it["kind"] == "PersistentVolumeClaim"}
placeholders = [text for secret in secrets.values() for text in secret.values()]
for text in placeholders:
    command = [program, "coordinator", "--listen", "0.0.0.0:0"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, env={"DDP_DOCTOR_TOKEN": text})
    assert refused.returncode == 3 and "the token has" in refused.stderr, (text, refused)
assert len(placeholders) == 2, secrets
pods = {}
for file, it in objects:
    assert kinds[it["kind"]] == it["apiVersion"], (file, it["kind"])
    if kubernetes_validate:
        kubernetes_validate.validate(it, "1.34", strict=True)
    template = it["spec"].get("template") if "spec" in it else None
    if not template:
        continue
    pods[it["metadata"]["name"]] = template
    selector = it["spec"].get("selector", {}).get("matchLabels", {})
    assert selector.items() <= template["metadata"].get("labels", {}).items(), file
    spec = template["spec"]
    volumes = {volume["name"] for volume in spec.get("volumes", [])}
    for volume in spec.get("volumes", []):
        is_kept = volume["name"] in ("reports", "runs")
        assert is_kept == ("persistentVolumeClaim" in volume), (file, volume)
        assert not is_kept or volume["persistentVolumeClaim"]["claimName"] in claims, (file, volume)
    for container in spec["containers"]:
        is_training = container["name"] == "train"
        limits = container.get("resources", {}).get("limits", {})
        assert is_training == ("nvidia.com/gpu" in limits), (file, container["name"])
    for container in spec.get("initContainers", []) + spec["containers"]:
        for mount in container.get("volumeMounts", []):
            assert mount["name"] in volumes, (file, mount)
        for variable in container.get("env", []):
            key = variable.get("valueFrom", {}).get("secretKeyRef")
            if key:
                assert key["key"] in secrets[key["name"]], (file, key)
        words = container.get("command", [""])
        if words[0] == "ddp-doctor":
            own = words[1:words.index("--")] if "--" in words else words[1:]
            checked = subprocess.run([program, *own, "--help"], capture_output=True, text=True)
            assert checked.returncode == 0, (file, checked.stderr)
for file, it in objects:
    if it["kind"] == "Service":
        selector = it["spec"]["selector"].items()
        assert any(selector <= pod["metadata"]["labels"].items() for pod in pods.values()), file
assert {it["kind"] for _, it in objects} == set(kinds), objects
