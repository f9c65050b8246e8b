"""The servers of captioners, judges and ASRs: do they answer, take the key, and serve the model?"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from rewards.catalogue import suggest
from rewards.endpoints.node import EndpointNode
from rl.doctor.check import Check, Verdict
from rl.doctor.rewards import Nodes

SECONDS = 10.0
"""That a server may take to list its models."""


def endpoints(found: Nodes) -> list[Check]:
    """One check for each node that asks a server, all asked at once.

    What is amiss is a warning for a node on which the total doesn't depend: its values would be missing. That
    a key's variable is set is checked where the node is built.
    """
    asked = {name: node for name, node in found.built.items() if isinstance(node, EndpointNode)}
    if not asked:
        return []
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = pool.map(lambda name: _endpoint(name, asked[name], name in found.needed), asked)
        return list(answers)


def _endpoint(name: str, node: EndpointNode, needed: bool) -> Check:
    import openai

    fault: Verdict = "cannot run" if needed else "warning"
    what, key = f"endpoint {name}", os.environ.get(node.key_env, "") if node.key_env else ""
    client = openai.OpenAI(base_url=node.base_url, api_key=key or "none", timeout=SECONDS, max_retries=0)
    try:
        with client:
            served = [model.id for model in client.models.list()]
    except openai.APITimeoutError:
        return Check(
            what, f"{node.base_url} doesn't answer within {SECONDS:g} s", fault, "look at that server"
        )
    except openai.APIConnectionError as error:
        reason = " ".join(str(error.__cause__ or error).split())
        return Check(what, f"{node.base_url} can't be reached ({reason})", fault, _start(node))
    except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
        remedy = f"set the variable {node.key_env} to its key" if node.key_env else "set key_env"
        return Check(what, f"{node.base_url} refuses the key ({error.status_code})", fault, remedy)
    except (openai.NotFoundError, openai.RateLimitError) as error:
        words = (
            f"{node.base_url} doesn't list its models ({error.status_code}); {node.model} is taken on trust"
        )
        return Check(what, words, "warning", "ask it once by hand, as docs/judges.md shows")
    except openai.APIStatusError as error:
        return Check(what, f"{node.base_url} answers {error.status_code}", fault, "look at that server's log")
    except (openai.APIResponseValidationError, TypeError, ValueError, AttributeError):
        remedy = "base_url must end in the version, such as http://localhost:8000/v1"
        return Check(what, f"{node.base_url} answers, but not with a list of models", fault, remedy)
    if node.model not in served:
        words = f"{node.base_url} doesn't serve {node.model}"
        return Check(what, words, fault, f"set its model; {suggest(node.model, served)}")
    return Check(what, f"{node.model} at {node.base_url}")


def _start(node: EndpointNode) -> str:
    """For a server of one's own, the command; for any other, what may be between."""
    if "://localhost" in node.base_url or "://127." in node.base_url:
        port = node.base_url.partition("://")[2].partition("/")[0].partition(":")[2]
        return f"vllm serve {node.model} --port {port or 80}, or name another base_url"
    return "name another base_url, or look at network and proxy"
