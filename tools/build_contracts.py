"""Compile contracts/ into sdk/lockstep/chain/abi: one committed JSON a contract, the same bytes on every machine.

Beside them lies verification.json.gz: the compiler's version and the one standard-JSON input of all of them, libraries
included, which block explorers take (`lockstep contracts verify --input`).

python tools/build_contracts.py            write the artifacts
python tools/build_contracts.py --check    exit 1 when the committed ones differ from the sources
"""

import argparse
import gzip
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CONTRACTS = ROOT / "contracts"
ARTIFACTS = ROOT / "sdk/lockstep/chain/abi"
FOUNDRY = ROOT / "foundry.toml"
BROWNIE = ROOT / "brownie-config.yaml"
VERIFICATION = ARTIFACTS / "verification.json.gz"

METADATA_BYTES = 53
"""Bytes of metadata that end brownie's build of a contract, and that this build leaves out."""
MAX_RUNTIME_BYTES = 24_576 - METADATA_BYTES  # EIP-170


def compiler_settings() -> dict[str, Any]:
    """The settings of foundry.toml in the words of solc's standard JSON."""
    profile = tomllib.loads(FOUNDRY.read_text())["profile"]["default"]
    return {
        "optimizer": {"enabled": profile["optimizer"], "runs": profile["optimizer_runs"]},
        "viaIR": profile["via_ir"],
        "evmVersion": profile["evm_version"],
        "metadata": {"bytecodeHash": profile["bytecode_hash"]},
        "remappings": profile["remappings"],
        "outputSelection": {
            "*": {
                "*": ["abi", "evm.bytecode", "evm.deployedBytecode", "evm.methodIdentifiers"],
                "": ["ast"],
            }
        },
    }


def require_brownie_agrees(settings: dict[str, Any]) -> None:
    """Brownie compiles on its own; a contract must not be tested under other settings than it ships with."""
    written = {line.strip() for line in BROWNIE.read_text().splitlines()}
    wanted = {
        f"evm_version: {settings['evmVersion']}",
        f"runs: {settings['optimizer']['runs']}",
        f"enabled: ${{BROWNIE_OPTIMIZER:-{str(settings['optimizer']['enabled']).lower()}}}",
        f"viaIR: {str(settings['viaIR']).lower()}",
        f"version: {json.loads((ROOT / 'package.json').read_text())['devDependencies']['solc']}",
    }
    if missing := sorted(wanted - written):
        sys.exit(f"brownie-config.yaml and foundry.toml or package.json disagree: brownie lacks {missing}")


def compile_all(settings: dict[str, Any]) -> dict[str, Any]:
    """solc's standard-JSON output for every source under contracts/. Exits with the compiler's words on an error."""
    sources = {
        path.relative_to(ROOT).as_posix(): {"content": path.read_text()} for path in sorted(CONTRACTS.rglob("*.sol"))
    }
    if not sources:
        return {"contracts": {}, "sources": {}}
    request = json.dumps({"language": "Solidity", "sources": sources, "settings": settings})
    run = subprocess.run(
        [ROOT / "tools/solc", "--standard-json"], input=request, capture_output=True, text=True, cwd=ROOT, check=False
    )
    if run.returncode != 0:
        sys.exit(f"tools/solc failed:\n{run.stderr}")
    output: dict[str, Any] = json.loads(run.stdout)
    for error in output.get("errors", []):
        print(error["formattedMessage"], file=sys.stderr)
    if any(error["severity"] == "error" for error in output.get("errors", [])):
        sys.exit("the contracts do not compile")
    return output


def deployable(output: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Name -> compiled contract, for what can be deployed: concrete contracts, libraries with calls of their own."""
    found: dict[str, dict[str, Any]] = {}
    for path, contracts in output["contracts"].items():
        if not path.startswith("contracts/"):
            continue
        nodes = {n["name"]: n for n in output["sources"][path]["ast"]["nodes"] if n["nodeType"] == "ContractDefinition"}
        for name, compiled in contracts.items():
            kind, abstract = nodes[name]["contractKind"], nodes[name]["abstract"]
            callable_library = kind == "library" and bool(compiled["evm"]["methodIdentifiers"])
            if abstract or not (kind == "contract" or callable_library):
                continue
            if name in found:
                sys.exit(f"two contracts are named {name}; artifacts are found by name")
            found[name] = compiled
    return found


def variables(output: dict[str, Any]) -> dict[str, str]:
    """AST id -> name, of every immutable: the compiler says by id alone where their values stand in the code."""
    found: dict[str, str] = {}

    def walk(node: Any) -> None:
        if isinstance(node, list):
            for each in node:
                walk(each)
        elif isinstance(node, dict):
            if node.get("nodeType") == "VariableDeclaration" and node.get("mutability") == "immutable":
                found[str(node["id"])] = node["name"]
            for each in node.values():
                walk(each)

    walk([source["ast"] for source in output["sources"].values()])
    return found


def artifact(name: str, compiled: dict[str, Any], names: dict[str, str]) -> str:
    """The committed text of one contract: ABI, creation and runtime code, the libraries to link, the immutables."""
    bytecode, runtime = compiled["evm"]["bytecode"], compiled["evm"]["deployedBytecode"]
    # Compact, by offset: one line a hole in the code would be most of the file.
    holes = {names[key]: sorted(at["start"] for at in places) for key, places in runtime["immutableReferences"].items()}
    links = {
        library: sorted(at["start"] for at in places)
        for file in runtime["linkReferences"].values()
        for library, places in file.items()
    }
    value: dict[str, Any] = {
        "contractName": name, "abi": compiled["abi"], "bytecode": "0x" + bytecode["object"],
        "runtime": "0x" + runtime["object"],
    }  # fmt: skip
    if bytecode["linkReferences"]:
        value["linkReferences"] = bytecode["linkReferences"]
    if links:
        value["runtimeLinks"] = links
    if holes:
        value["immutables"] = holes
    return json.dumps(value, indent=1, sort_keys=True) + "\n"


def verification(settings: dict[str, Any], output: dict[str, Any]) -> dict[str, Any]:
    """What an explorer needs to compile the same bytes: the compiler, its input with every source that it read, and
    where each contract stands in it."""
    sources = {path: {"content": (ROOT / path).read_text()} for path in sorted(output["sources"])}
    version = subprocess.run([ROOT / "tools/solc", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\d+\.\d+\.\d+\+commit\.[0-9a-f]{8}", version)
    if found is None:
        sys.exit(f"tools/solc does not tell its version: {version}")
    wanted = {**settings, "outputSelection": {"*": {"*": ["abi", "evm.bytecode", "evm.deployedBytecode"]}}}
    contracts = deployable(output)
    places = {
        name: f"{path}:{name}"
        for path, group in output["contracts"].items()
        if path.startswith("contracts/")
        for name in group
        if name in contracts
    }
    return {
        "compiler": f"v{found[0]}",
        "contracts": places,
        "input": {"language": "Solidity", "sources": sources, "settings": wanted},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the committed artifacts, write nothing")
    check = parser.parse_args().check

    settings = compiler_settings()
    require_brownie_agrees(settings)
    output = compile_all(settings)
    contracts, names = deployable(output), variables(output)
    too_large = []
    for name, compiled in sorted(contracts.items()):
        size = len(compiled["evm"]["deployedBytecode"]["object"]) // 2
        print(f"{name:<24} {size:>6} bytes")
        if size > MAX_RUNTIME_BYTES:
            too_large.append(name)

    wanted = {f"{name}.json": artifact(name, compiled, names) for name, compiled in contracts.items()}
    committed = {path.name: path.read_text() for path in ARTIFACTS.glob("*.json")}
    stale = sorted(name for name in wanted.keys() | committed.keys() if wanted.get(name) != committed.get(name))
    # Compared unpacked: two versions of zlib pack the same text differently.
    inputs = json.dumps(verification(settings, output), sort_keys=True)
    if not VERIFICATION.exists() or gzip.decompress(VERIFICATION.read_bytes()).decode() != inputs:
        stale.append(VERIFICATION.name)
    if check and stale:
        sys.exit(f"out of step with contracts/: {', '.join(stale)}. Run `make contracts` and commit.")
    if not check:
        ARTIFACTS.mkdir(parents=True, exist_ok=True)
        for name in stale:
            if name == VERIFICATION.name:
                VERIFICATION.write_bytes(gzip.compress(inputs.encode(), 9, mtime=0))
            elif name in wanted:
                (ARTIFACTS / name).write_text(wanted[name])
            else:
                (ARTIFACTS / name).unlink()
    if too_large:
        sys.exit(f"above {MAX_RUNTIME_BYTES} bytes, no chain deploys brownie's build (EIP-170): {', '.join(too_large)}")


if __name__ == "__main__":
    main()
