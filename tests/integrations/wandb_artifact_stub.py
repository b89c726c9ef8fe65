"""The artifacts of the stub of the service: created, uploaded, committed and deleted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class ArtifactStub:
    """The versions of artifacts, by id, and the names of the files that were uploaded."""

    versions: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Version -> the input that created it, and `state`: `PENDING`, `COMMITTED` or `DELETED`."""
    uploaded: set[str] = field(default_factory=set)

    def of_state(self, state: str) -> list[list[str]]:
        """Return the aliases of the versions in a state."""
        return [sorted(one["alias"] for one in v["aliases"]) for v in self.versions.values() if v["state"] == state]

    def answer(self, query: str, variables: dict[str, Any], url: str) -> dict[str, Any]:
        """Return the data of a query of artifacts; empty for another query."""
        if "query ArtifactType(" in query or "query ArtifactType " in query:
            return {"project": {"artifact": None}}
        if "createArtifact(" in query:
            given = variables["input"]
            number = len(self.versions)
            created = {**given, "id": f"version-{number}", "number": number, "state": "PENDING"}
            self.versions[created["id"]] = created
            sequence = {"id": "sequence", "latestArtifact": None}
            return {
                "createArtifact": {"artifact": {"id": created["id"], "state": "PENDING", "artifactSequence": sequence}}
            }
        if "createArtifactManifest(" in query:
            name = f"manifest-of-{variables['artifactID']}"
            file = {"id": name, "uploadUrl": f"{url}/storage/{name}", "uploadHeaders": []}
            return {"createArtifactManifest": {"artifactManifest": {"id": name, "file": file}}}
        if "createArtifactFiles(" in query:
            edges = []
            for file in variables["input"]["artifactFiles"]:
                path = f"{file['artifactID']}/{file['name']}"
                self.uploaded.add(path)
                node = {"storagePath": path, "uploadUrl": f"{url}/storage/{path}", "uploadHeaders": []}
                edges.append({"node": {**node, "uploadMultipartUrls": None, "artifact": {"id": file["artifactID"]}}})
            return {"createArtifactFiles": {"files": {"edges": edges}}}
        if "commitArtifact(" in query:
            version = self.versions[variables["artifactID"]]
            version["state"] = "COMMITTED"
            return {"commitArtifact": {"artifact": {"id": version["id"], "digest": version["digest"]}}}
        if "query ArtifactByID" in query:
            return {"artifact": self._described(self.versions[variables["id"]])}
        if "deleteArtifact(" in query:
            version = self.versions[variables["input"]["artifactID"]]
            version["state"] = "DELETED"
            return {"result": {"artifact": {"__typename": "Artifact", "id": version["id"]}}}
        if "query ArtifactMembershipByName" in query:
            name, _, alias = variables["name"].partition(":")
            found = [v for v in self.versions.values() if alias in [one["alias"] for one in v["aliases"]]]
            membership = self._membership(found[-1]) if found else None
            return {"project": {"artifactCollectionMembership": membership}}
        return {}

    def _membership(self, version: dict[str, Any]) -> dict[str, Any]:
        described = self._described(version)
        return {
            **{"__typename": "ArtifactCollectionMembership", "id": "membership", "versionIndex": version["number"]},
            **{"createdAt": "2026-01-01T00:00:00", "aliases": described["aliases"], "artifact": described},
            "artifactCollection": described["artifactSequence"],
        }

    def _described(self, version: dict[str, Any]) -> dict[str, Any]:
        name = version["artifactCollectionName"]
        owner = {"id": "project", "internalId": "1", "name": "p", "entity": {"name": "ann"}}
        sequence = {"__typename": "ArtifactSequence", "id": "sequence", "name": name, "project": owner}
        alias = [
            {"__typename": "ArtifactAlias", "alias": one["alias"], "id": one["alias"], "artifactCollection": sequence}
            for one in version["aliases"]
        ]
        return {
            **{"__typename": "Artifact", "id": version["id"], "artifactSequence": sequence, "aliases": alias},
            **{"versionIndex": version["number"], "artifactType": {"name": "model"}, "description": None},
            **{"metadata": version["metadata"], "ttlDurationSeconds": -1, "ttlIsInherited": True, "tags": []},
            **{"historyStep": None, "state": version["state"], "size": 1, "digest": version["digest"]},
            **{"commitHash": None, "fileCount": 1, "createdAt": "2026-01-01T00:00:00", "updatedAt": None},
        }
