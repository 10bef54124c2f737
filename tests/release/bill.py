"""The bill of materials: its form, and that it says what is there."""

import copy
import hashlib
import json
import os
import re
import subprocess

from builds import check
from hardening import PROGRAMS, say

# What CycloneDX 1.5 allows in the places that box uses.
TYPES = {"application", "framework", "library", "container", "platform", "operating-system",
         "device", "device-driver", "firmware", "file", "machine-learning-model", "data"}
SCOPES = {"required", "optional", "excluded"}
AGGREGATES = {"complete", "incomplete", "incomplete_first_party_only",
              "incomplete_third_party_only", "unknown", "not_specified"}
COMPONENT_KEYS = {"type", "bom-ref", "name", "version", "purl", "scope", "licenses", "hashes",
                  "description", "properties", "components"}
TOP_KEYS = {"bomFormat", "specVersion", "serialNumber", "version", "metadata", "components",
            "dependencies", "compositions"}
SERIAL = r"urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-[1-5][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
URL = r"pkg:deb/[a-z0-9.-]+/[a-z0-9.%B+-]+@[A-Za-z0-9.:~%+-]+(\?arch=[a-z0-9]+)?"
DIGEST = {"SHA-256": r"[0-9a-f]{64}"}


def read_bill(pair):
    with open(os.path.join(pair.root, "share/box/box.cdx.json"), encoding="utf-8") as file:
        return json.load(file)


def licence_faults(component):
    for entry in component.get("licenses", []):
        licence = entry.get("license", {})
        if set(entry) != {"license"} or len(set(licence) & {"id", "name"}) != 1 or \
                not all(isinstance(value, str) and value for value in licence.values()):
            yield f"licence {entry}"


def component_faults(component):
    name = component.get("bom-ref")
    for key in ("type", "name", "bom-ref"):
        if not isinstance(component.get(key), str) or not component[key]:
            yield f"{name} has no {key}"
    if set(component) - COMPONENT_KEYS:
        yield f"{name} has unknown keys {set(component) - COMPONENT_KEYS}"
    if component.get("type") not in TYPES:
        yield f"{name} has the type {component.get('type')}"
    if component.get("scope", "required") not in SCOPES:
        yield f"{name} has the scope {component.get('scope')}"
    if "purl" in component and not re.fullmatch(URL, component["purl"]):
        yield f"{name} has the purl {component['purl']}"
    for entry in component.get("hashes", []):
        if not re.fullmatch(DIGEST.get(entry.get("alg"), "no"), entry.get("content", "")):
            yield f"{name} has the digest {entry}"
    for entry in component.get("properties", []):
        if set(entry) != {"name", "value"} or not all(isinstance(v, str) for v in entry.values()):
            yield f"{name} has the property {entry}"
    yield from licence_faults(component)


def faults(bill):
    """Everything that is wrong with the form of a bill."""
    if (bill.get("bomFormat"), bill.get("specVersion")) != ("CycloneDX", "1.5"):
        yield "it is not CycloneDX 1.5"
    if set(bill) != TOP_KEYS:
        yield f"keys {set(bill) ^ TOP_KEYS}"
    if not isinstance(bill.get("version"), int) or bill["version"] < 1:
        yield "version"
    if not re.fullmatch(SERIAL, str(bill.get("serialNumber"))):
        yield f"serialNumber {bill.get('serialNumber')}"
    if "timestamp" in bill.get("metadata", {}):
        yield "a time"
    main = bill.get("metadata", {}).get("component", {})
    components = [main, *main.get("components", []), *bill.get("components", [])]
    for component in components:
        yield from component_faults(component)
    references = [component.get("bom-ref") for component in components]
    if len(references) != len(set(references)):
        yield "a bom-ref twice"
    named = [each.get("ref") for each in bill.get("dependencies", [])]
    if sorted(named) != sorted(references):
        yield f"dependencies {set(named) ^ set(references)}"
    for entry in bill.get("dependencies", []):
        unknown = set(entry.get("dependsOn", [])) - set(references)
        if unknown or entry.get("ref") in entry.get("dependsOn", []):
            yield f"{entry.get('ref')} depends on {unknown or 'itself'}"
    for entry in bill.get("compositions", []):
        if entry.get("aggregate") not in AGGREGATES or \
                set(entry.get("dependencies", [])) - set(references):
            yield f"composition {entry}"


def the_bill_has_the_right_form(pair):
    """By the structure of CycloneDX 1.5."""
    found = list(faults(read_bill(pair)))
    check(not found, "\n".join(found))


def a_wrong_bill_is_refused(pair):
    """Each of these changes must be seen."""
    changes = [
        lambda bill: bill.update(specVersion="1.4"),
        lambda bill: bill.update(serialNumber="urn:uuid:1"),
        lambda bill: bill.update(version=0),
        lambda bill: bill.update(more=1),
        lambda bill: bill["metadata"].update(timestamp="2001-01-01T00:00:00Z"),
        lambda bill: bill["components"][0].pop("name"),
        lambda bill: bill["components"][0].update(type="thing"),
        lambda bill: bill["components"][0].update(scope="maybe"),
        lambda bill: bill["components"][0].update(purl="pkg:deb/x y"),
        lambda bill: bill["components"][0].update(licenses=[{"license": {}}]),
        lambda bill: bill["components"][0].update(more=1),
        lambda bill: bill["components"].append(bill["components"][0]),
        lambda bill: bill["components"].pop(),
        lambda bill: bill["dependencies"].pop(),
        lambda bill: bill["dependencies"][0]["dependsOn"].append("nobody"),
        lambda bill: bill["metadata"]["component"]["components"][0]["hashes"][0].update(
            content="12"),
        lambda bill: bill["compositions"][0].update(aggregate="some"),
    ]
    good = read_bill(pair)
    for number, change in enumerate(changes):
        bad = copy.deepcopy(good)
        change(bad)
        check(list(faults(bad)), f"change {number} is not seen")


def owner(path):
    """The Debian package of a file, by dpkg itself."""
    for name in (path, os.path.realpath(path), "/usr" + path):
        result = subprocess.run(["dpkg-query", "-S", name], capture_output=True, text=True,
                                check=False)
        if result.returncode == 0:
            return result.stdout.split(":")[0]
    raise AssertionError(f"no package owns {path}")


def installed_version(package):
    return say("dpkg-query", "-W", "-f", "${Version}\n", package).splitlines()[0]


def the_bill_names_every_library(pair):
    """What the loader itself finds for a program, with package and version by dpkg."""
    bill = read_bill(pair)
    components = {each["bom-ref"]: each for each in bill["components"]}
    depends = {each["ref"]: set(each["dependsOn"]) for each in bill["dependencies"]}
    for name, libraries in PROGRAMS.items():
        reached, waiting = set(), [f"box/{name}"]
        while waiting:
            current = waiting.pop()
            if current not in reached:
                reached.add(current)
                waiting += depends[current]
        listed = {components[each]["name"]: components[each] for each in reached
                  if each in components}
        if libraries is None:
            # libc and the compiler's own library, from the packages for developers.
            check("libc6-dev" in listed and len(listed) >= 2, name, sorted(listed))
            check({"name": "box:linkage", "value": "static"} in listed["libc6-dev"]["properties"],
                  listed["libc6-dev"])
            wanted = set(listed)
        else:
            loaded = re.findall(r"(/\S+) \(0x", say("ldd", os.path.join(pair.root, name)))
            check(len(loaded) > len(libraries), name, loaded)
            wanted = {owner(path) for path in loaded}
        check(set(listed) == wanted, name, sorted(set(listed) ^ wanted))
        for package, component in listed.items():
            check(component.get("version") == installed_version(package), component)
            check(component.get("scope") == "required", component)


def the_bill_has_the_files(pair):
    """The digests are those of the files, and every program is there."""
    main = read_bill(pair)["metadata"]["component"]
    listed = {each["name"]: each["hashes"][0]["content"] for each in main["components"]}
    check(set(PROGRAMS) <= set(listed), set(PROGRAMS) - set(listed))
    for name, digest in listed.items():
        with open(os.path.join(pair.root, name), "rb") as file:
            check(hashlib.sha256(file.read()).hexdigest() == digest, name)
    said = say(os.path.join(pair.root, "bin/box"), "--version").split()
    check(main["version"] == said[1], main["version"], said)


def the_bill_names_what_runs_beside(pair):
    """Monitor, firmware, kernel and helpers, with the scope that each has."""
    components = {each["name"]: each for each in read_bill(pair)["components"]}
    wanted = {"qemu-system-x86": "required", "seabios": "required",
              "linux-image-cloud-amd64": "required", "busybox-static": "optional",
              "mmdebstrap": "optional", "uidmap": "optional", "libseccomp2": "excluded"}
    for name, scope in wanted.items():
        check(name in components, name, "is not in", sorted(components))
        check(components[name]["scope"] == scope, components[name])
    version = installed_version("qemu-system-x86")
    check(components["qemu-system-x86"]["version"] == version, components["qemu-system-x86"])
    # A release holds no kernel, so nobody can know which version it will be.
    check("version" not in components["linux-image-cloud-amd64"], "the kernel's version")


TESTS = [the_bill_has_the_right_form, a_wrong_bill_is_refused, the_bill_names_every_library,
         the_bill_has_the_files, the_bill_names_what_runs_beside]
