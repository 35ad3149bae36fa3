"""A pytest plugin for llama.cpp's server tests: marks those that do not apply, and writes every result with its reason.

Environment: LLAMA_SERVER_RESULTS is the file for the results.

llama.cpp's tests expect the texts and token counts of models that are not available; the built-in model replaces them.
A test that states such an expectation among others runs without it ("in part"); one that has little else does not apply.
"""

import json
import os
import re
from unittest.mock import ANY

import pytest

NO_IMAGES = "images and audio are not supported"
NO_TOOLS = "llama-server's own tools, MCP servers and proxy for its page are not supported"
NO_ROUTER = "several models behind one server are not supported"
COUNTS = "expects the token counts of stories260K"
BIG = "expects the text of a large model"

# Reasons by file, file::test or file::test[case]; the longest match applies.
NOT_APPLICABLE = {
    "test_vision_api": NO_IMAGES,
    "test_mcp_servers": NO_TOOLS,
    "test_tools_builtin": NO_TOOLS,
    "test_proxy": NO_TOOLS,
    "test_router": NO_ROUTER,
    "test_stream": NO_ROUTER,
    "test_speculative": "draft models are not supported",
    "test_lora": "LoRA adapters are not supported",
    "test_rerank": "jina-reranker: BERT is not supported",
    "test_sleep": "unloading an idle model is not supported",
    "test_compat_gcp": "Google's /predict is not supported",
    "test_kv_keep_only_active": "reads the debug log of llama.cpp's cache in host memory",
    "test_basic::test_load_split_model": "expects the text of stories15M",
    "test_ctx_shift::test_ctx_shift_enabled": "context shift is not supported",
    "test_ctx_shift::test_ctx_shift_disabled_short_prompt[-1-248-True]": COUNTS,
    "test_ctx_shift::test_ctx_shift_disabled_long_prompt": COUNTS,
    "test_chat_completion::test_chat_completion_cached_tokens": COUNTS,
    "test_chat_completion::test_return_progress": COUNTS,
    "test_completion::test_completion_prompt_cache": COUNTS,
    "test_completion::test_nocache_long_input_prompt": COUNTS,
    "test_completion::test_n_probs_post_backend_sampling": "sampling on the GPU is not supported",
    "test_slot_save::test_slot_save_restore": COUNTS,
    "test_slot_save::test_slot_erase": COUNTS,
    "test_slot_save::test_slot_restore_legacy_token_list": "rewrites llama.cpp's own file of a slot",
    "test_embedding::test_embedding_usage_multiple": "expects the token counts of bge-small",
    "test_embedding::test_embedding_pooling_none": "expects the token counts of bge-small",
    "test_security::test_access_static_assets_without_api_key": "expects the file names of llama.cpp's page",
    "test_security::test_cors_origins_defaults_to_localhost_with_tools_enabled": NO_TOOLS,
    "test_security::test_cors_proxy_only_forwards_explicit_proxy_headers": NO_TOOLS,
    "test_security::test_local_media_file": NO_IMAGES,
    "test_compat_anthropic::test_anthropic_vision_base64_with_multimodal_model": NO_IMAGES,
}

# Tests that run without the checks that depend on the model: the parameters that then match any
# value; `text` stands for all regular expressions that a text must match.
IN_PART = {
    "test_chat_completion::test_chat_completion": ("re_content", "n_prompt"),
    "test_chat_completion::test_chat_completion_stream": ("re_content", "n_prompt"),
    "test_chat_completion::test_chat_completion_with_openai_library": ("text",),
    "test_completion::test_completion": ("re_content", "n_prompt"),
    "test_completion::test_completion_stream": ("re_content", "n_prompt"),
    "test_completion::test_completion_with_openai_library": ("text",),
    "test_completion::test_completion_stream_with_openai_library": ("text",),
    "test_compat_oai_responses::test_responses_with_openai_library": ("text",),
    "test_compat_oai_responses::test_responses_stream_with_openai_library": ("text",),
    "test_embedding::test_embedding_usage_single": ("n_tokens",),
    "test_infill::test_infill_without_input_extra": ("text",),
    "test_infill::test_infill_with_input_extra": ("text",),
}

# Tests that need longer answers than the built-in model gives; its end token is ignored.
IGNORE_EOS = {
    "test_chat_completion::test_chat_completion",
    "test_chat_completion::test_chat_completion_stream",
    "test_completion::test_completion",
    "test_completion::test_completion_stream",
    "test_completion::test_completion_unified",
    "test_ctx_shift::test_ctx_shift_disabled_stream",
    "test_ctx_shift::test_ctx_shift_disabled_short_prompt",
    "test_metrics::test_metrics_predicted_total_matches_requests",
}


def names(item):
    """File, test and case, from general to exact."""
    file = item.path.stem
    test = f"{file}::{item.originalname}"
    return [file, test, f"{file}::{item.name}"]


def reason_not_applicable(item):
    if item.get_closest_marker("slow"):
        return BIG
    if "mmproj_server" in item.fixturenames or "vision_server" in item.fixturenames:
        return NO_IMAGES
    found = [NOT_APPLICABLE[name] for name in names(item) if name in NOT_APPLICABLE]
    return found[-1] if found else None


def pytest_configure(config):
    import utils
    # Models are not downloaded before the tests.
    utils.ServerPreset.load_all = staticmethod(lambda: None)
    config.addinivalue_line("markers", "slow: needs a large model")
    config.stash_results = {}


def pytest_collection_modifyitems(items):
    for item in items:
        reason = reason_not_applicable(item)
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
            continue
        for name in IN_PART.get(names(item)[1], ()):
            if name == "re_content":
                item.callspec.params[name] = ""
            elif name != "text":
                item.callspec.params[name] = ANY


def as_llama_cpp(metrics):
    """Metrics with llama-server's prefix, without histograms, which the tests' parser misreads."""
    text = metrics.replace("thermocline:", "llamacpp:")
    histograms = tuple(line.split()[2] for line in text.splitlines() if re.match("# TYPE .* histogram", line))
    lines = [line for line in text.splitlines() if not (histograms and line.startswith(histograms))]
    return "\n".join(lines) + "\n"


@pytest.fixture(autouse=True)
def adapt_module(request, monkeypatch):
    """Adapts the metrics' names, and relaxes expectations about texts and their length."""
    module = request.module
    if "text" in IN_PART.get(names(request.node)[1], ()):
        monkeypatch.setattr(module, "match_regex", lambda regex, text: isinstance(text, str))
    if names(request.node)[1] in IGNORE_EOS:
        monkeypatch.setenv("THERMOCLINE_ARG_IGNORE_EOS", "on")
    if hasattr(module, "parse_metrics"):
        fetch = module.fetch_metrics
        monkeypatch.setattr(module, "fetch_metrics", lambda server: as_llama_cpp(fetch(server)))


def error_line(report):
    """The line that failed and its message."""
    crash = getattr(report.longrepr, "reprcrash", None)
    message = crash.message if crash else str(report.longrepr)
    where = ""
    for entry in getattr(getattr(report.longrepr, "reprtraceback", None), "reprentries", []):
        where = next((line for line in str(entry).splitlines() if line.startswith(">")), where)
    return (where.lstrip("> ").strip() + "  # " if where else "") + " ".join(message.split())[:300]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    results = item.config.stash_results
    key = item.nodeid.removeprefix("unit/")
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        results[key] = ["not applicable", BIG if reason == "skipping slow test" else reason]
    elif report.failed:
        results[key] = ["failed", error_line(report)]
    elif report.when == "call":
        in_part = names(item)[1] in IN_PART
        results[key] = ["passed in part" if in_part else "passed", ""]


def pytest_sessionfinish(session):
    with open(os.environ["LLAMA_SERVER_RESULTS"], "w") as file:
        json.dump(session.config.stash_results, file, indent=1)
