"""Tests of the page in headless Chromium. Each test gets a new `Visit`."""

import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
CORPUS = HERE / "corpus"
ACTION_MS = 10_000
ANSWER_MS = 60_000
SERIOUS = ("serious", "critical")


class Visit:
    """A tab with an empty profile. It records errors and every request."""

    def __init__(self, browser, address, **options):
        options = {"viewport": {"width": 1380, "height": 860}, **options}
        self.context = browser.new_context(accept_downloads=True, **options)
        self.address = address
        self.errors, self.urls, self.dialogs = [], [], []
        self.page = self.context.new_page()
        self.page.set_default_timeout(ACTION_MS)
        self.watch(self.page)
        self.page.goto(address)
        self.wait("document.querySelector('#model option')")

    def watch(self, page):
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        page.on("request", lambda request: self.urls.append(request.url))
        page.on("dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()

    def ask(self, text, wait=True):
        self.page.fill("#input", text)
        self.page.press("#input", "Enter")
        if wait:
            self.wait_for_answer()

    def wait(self, expression):
        """Waits until `expression` holds. Playwright's `wait_for_function` needs `eval`, which the page's policy forbids."""
        for _ in range(ACTION_MS // 50):
            if self.page.evaluate(f"Boolean({expression})"):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"did not become true: {expression}")

    def wait_for_answer(self):
        self.page.wait_for_selector("#send:visible", timeout=ANSWER_MS)

    def bodies(self):
        return [node.inner_text().strip() for node in self.page.query_selector_all("#log .body")]

    def last(self, selector=""):
        return self.page.locator(f"#log article:last-child {selector}".strip())

    def tool(self, label, at=-1):
        """Clicks a button of a message."""
        articles = self.page.locator("#log article")
        at = at % articles.count()
        articles.nth(at).get_by_role("button", name=label).click()

    def no_errors(self, allowed=()):
        bad = [error for error in self.errors if not any(part in error for part in allowed)]
        assert not bad, bad
        foreign = [url for url in self.urls if not url.startswith((self.address, "blob:", "data:"))]
        assert not foreign, foreign


# Tests for any server, whose answers are not known in advance.


def types_streams_and_reloads(visit):
    visit.ask("Once upon a time")
    first = visit.bodies()
    assert len(first) == 2 and first[1], first
    visit.page.reload()
    visit.page.wait_for_selector("#log article")
    assert visit.bodies() == first
    visit.no_errors()


def stops_an_answer(visit):
    visit.ask("count", wait=False)
    visit.wait("document.querySelector('#log article:last-child .body').textContent.length > 3")
    visit.page.keyboard.press("Escape")
    visit.wait_for_answer()
    text = visit.bodies()[-1]
    visit.page.wait_for_timeout(300)
    assert visit.bodies()[-1] == text
    assert "Stopped" in visit.last(".note").inner_text()
    visit.page.wait_for_timeout(300)
    visit.page.reload()
    visit.page.wait_for_selector("#log article")
    assert visit.bodies()[-1] == text
    visit.no_errors()


def regenerates_and_switches_versions(visit):
    visit.ask("Hello")
    visit.tool("Regenerate answer")
    visit.wait_for_answer()
    assert visit.last(".count").inner_text() == "2/2"
    visit.tool("Previous version")
    assert visit.last(".count").inner_text() == "1/2"
    focused = visit.page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert focused and focused != "Message", focused
    visit.no_errors()


def edits_messages(visit):
    visit.ask("First words")
    visit.ask("Second words")
    visit.tool("Edit message", 0)
    area = visit.page.locator("#log textarea.edit")
    area.fill("Other words")
    area.press("Enter")
    visit.wait_for_answer()
    assert [visit.bodies()[0], len(visit.bodies())] == ["Other words", 2]
    visit.tool("Previous version", 0)
    assert [visit.bodies()[0], len(visit.bodies())] == ["First words", 4]
    visit.page.reload()
    visit.page.wait_for_selector("#log article")
    assert [visit.bodies()[0], len(visit.bodies())] == ["First words", 4]
    visit.no_errors()


def manages_conversations(visit):
    page = visit.page
    visit.ask("About whales")
    page.click("#new-chat")
    visit.ask("About ships")
    page.get_by_role("button", name="Rename conversation").click()
    page.fill("#rename", "Naval matters")
    page.press("#rename", "Enter")
    titles = lambda: [node.inner_text() for node in page.query_selector_all(".conversation")]
    assert titles() == ["Naval matters", "About whales"], titles()
    page.fill("#search", "WHALES")
    assert titles() == ["About whales"]
    page.fill("#search", "")
    page.focus(".conversation >> nth=0")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert visit.bodies()[0] == "About whales"
    with page.expect_download() as download:
        page.click("#export-all")
    exported = download.value.path()
    assert json.loads(Path(exported).read_text())["format"] == "thermocline-conversations"
    page.get_by_role("button", name="Delete conversation").click()
    page.click("#confirm-yes")
    visit.wait("document.querySelectorAll('.conversation').length === 1")
    page.set_input_files("#import-file", str(exported))
    visit.wait("document.querySelectorAll('.conversation').length === 3")
    page.set_input_files("#import-file", str(CORPUS / "broken.md"))
    assert "heading" in page.inner_text("#error-text")
    page.set_input_files("#import-file", {"name": "x.json", "mimeType": "application/json", "buffer": b"# x"})
    visit.wait("document.querySelector('#error-text').textContent.includes('not JSON')")
    page.click(".conversation >> nth=0")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export as Markdown").click()
    markdown = Path(download.value.path()).read_bytes()
    before = visit.bodies()
    page.set_input_files("#import-file", {"name": "talk.md", "mimeType": "text/markdown", "buffer": markdown})
    visit.wait("document.querySelectorAll('.conversation').length === 4")
    page.click(".conversation >> nth=0")
    assert visit.bodies() == before and len(before) > 1
    page.reload()
    visit.wait("document.querySelectorAll('.conversation').length === 4")
    visit.no_errors()


def attaches_files(visit):
    page = visit.page
    page.set_input_files("#attach-file", [
        {"name": "note.txt", "mimeType": "text/plain", "buffer": b"<b>secret 123</b>"},
        {"name": "picture.bin", "mimeType": "application/octet-stream", "buffer": b"\xff\x00\xfe"},
    ])
    page.wait_for_selector(".chip")
    assert "picture.bin is not a text file" in page.inner_text("#error-text")
    big = {"name": "big.txt", "mimeType": "text/plain", "buffer": b"x" * (1 << 20) + b"x"}
    page.set_input_files("#attach-file", [big])
    visit.wait("document.querySelector('#error-text').textContent.includes('big.txt')")
    give = """(at, [selector, event, field]) => {
        const data = new DataTransfer();
        data.items.add(new File([event], `${event}.txt`, { type: "text/plain" }));
        const made = event === "paste" ? ClipboardEvent : DragEvent;
        document.querySelector(selector).dispatchEvent(new made(event, { [field]: data, bubbles: true, cancelable: true }));
    }"""
    page.locator("body").evaluate(give, ["#input", "paste", "clipboardData"])
    page.locator("body").evaluate(give, ["#scroll", "drop", "dataTransfer"])
    visit.wait("document.querySelectorAll('.chip').length === 3")
    page.get_by_role("button", name="Remove paste.txt").click()
    with page.expect_request("**/v1/chat/completions") as request:
        visit.ask("Read it")
    sent = json.loads(request.value.post_data)["messages"][-1]["content"]
    assert "drop.txt" in sent and "paste.txt" not in sent
    assert "note.txt" in sent and "<b>secret 123</b>" in sent and sent.endswith("Read it")
    assert "note.txt" in page.locator("#log .attachment").first.inner_text()
    visit.no_errors()


def sends_parameters(visit):
    page = visit.page
    page.click("#open-settings")
    page.fill("#set-temperature", "0.25")
    page.fill("#set-top_k", "7")
    page.fill("#set-seed", "11")
    page.fill("#set-max_tokens", "12")
    page.fill("#set-min_p", "4")
    page.fill("#set-stop", "END\\n\nSTOP")
    page.fill("#set-system", "Speak plainly")
    page.keyboard.press("Escape")
    with page.expect_request("**/v1/chat/completions") as request:
        visit.ask("Hello")
    body = json.loads(request.value.post_data)
    assert body["temperature"] == 0.25 and body["top_k"] == 7 and body["seed"] == 11 and body["max_tokens"] == 12
    assert "min_p" not in body, "4 is outside of its range"
    assert body["stop"] == ["END\n", "STOP"] and body["stream_options"] == {"include_usage": True}
    assert body["messages"][0] == {"role": "system", "content": "Speak plainly"}
    visit.no_errors()


def keyboard_and_panel(visit):
    page = visit.page
    page.fill("#input", "a")
    page.press("#input", "Shift+Enter")
    assert page.input_value("#input") == "a\n"
    page.focus("#new-chat")
    page.keyboard.press("Control+/")
    assert page.evaluate("document.activeElement.id") == "input"
    if page.is_hidden("#panel"):
        page.click("#toggle-panel")
    visit.wait("document.querySelector('#panel-state').textContent.includes('layers')")
    page.focus("#picture")
    page.keyboard.press("End")
    assert "Layer" in page.inner_text("#picture-layer")
    visit.ask("Once")
    visit.wait("document.querySelector('#picture').getAttribute('aria-label').includes('fired for the token just written')")
    page.focus("#picture")
    page.keyboard.press("Home")
    assert "fired for the token just written" in page.inner_text("#picture-layer")
    page.click("#panel summary")
    visit.wait("document.querySelector('#layer-table tbody tr')")
    rows = page.locator("#layer-table tbody tr").count()
    assert page.evaluate("document.querySelector('#picture').height") >= rows
    visit.no_errors()


def policy_is_strict(visit):
    """The policy of every file forbids inline code, frames and other servers."""
    wanted = {
        "default-src": "'none'", "script-src": "'self'", "style-src": "'self'", "connect-src": "'self'",
        "font-src": "'none'", "base-uri": "'none'", "form-action": "'none'", "frame-ancestors": "'none'",
    }
    files = sorted({url for url in visit.urls if "/page/" in url or url == visit.address})
    assert len(files) > 10, files
    for url in files:
        headers = visit.context.request.get(url).headers
        policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
        assert policy.pop("img-src") == "'self' data: blob:" and policy == wanted, (url, policy)
        assert headers["x-content-type-options"] == "nosniff", url
    visit.page.evaluate("setTimeout('window.inlined = 1')")
    visit.page.evaluate("document.body.append(Object.assign(document.createElement('script'), {text: 'window.inlined = 1'}))")
    visit.page.wait_for_timeout(100)
    assert visit.page.evaluate("window.inlined") is None


# Tests for the mock server, whose answers are known.


def shows_reasoning_and_errors(visit):
    visit.ask("think")
    assert visit.bodies()[-1] == "The answer is 42."
    details = visit.last(".reasoning")
    assert not details.evaluate("node => node.open")
    details.locator("summary").click()
    assert "units" in details.inner_text()
    visit.ask("fail")
    assert visit.bodies()[-1] == "This answer ends"
    assert "the device was lost" in visit.last(".note").inner_text()
    visit.ask("again")
    assert visit.bodies()[-1] == "You said: again"
    assert "33.4 tokens/s" in visit.page.inner_text("#status")
    visit.no_errors()


def renders_markdown(visit):
    visit.ask("show showcase.md")
    body = visit.last(".body")
    count = lambda selector: body.locator(selector).count()
    assert count("h3") == 1 and count("h4") == 1, "headings are below the page's"
    assert count("table") == 1 and count("tbody tr") == 2 and count("tbody tr >> nth=0 >> td") == 3
    assert count(".code-block") == 3 and count(".hl-keyword") > 3 and count(".hl-added") == 1
    assert count("ol li ul li") == 3 and count("blockquote blockquote") == 1 and count("li.task") == 2
    assert [count("math"), count("math[display=block]")] == [5, 3]
    assert body.locator("a").first.get_attribute("href") == "https://example.com/a_(b)"
    assert all("noopener" in link.get_attribute("rel") for link in body.locator("a").all())
    assert count("img") == 0 and "$5 and $10" in body.inner_text()
    assert "\\unknowncommand" in body.locator("mtext.math-source").text_content()
    body.locator(".copy-code").first.click()
    visit.wait("document.querySelector('.copy-code').textContent !== 'Copy'")
    visit.no_errors()


def hostile_text_is_inert(visit):
    page = visit.page
    allowed = "a,blockquote,br,button,code,del,div,em,h3,h4,h5,h6,hr,li,math,ol,p,pre,span,strong,table,tbody,td,th,thead,tr,ul"
    for name in ("scripts.md", "broken.md"):
        visit.ask(f"show {name}")
        found = page.evaluate(
            """([allowed]) => {
                const known = new Set(allowed.split(","));
                const bad = [];
                for (const node of document.querySelectorAll("#log .body *")) {
                    if (node.namespaceURI.endsWith("MathML")) continue;
                    if (!known.has(node.localName)) bad.push(node.localName);
                    for (const { name, value } of node.attributes) {
                        if (name.startsWith("on") || name === "style" || name === "src") bad.push(`${name}=${value}`);
                        if (name === "href" && !/^(https?:|mailto:)/.test(value)) bad.push(value);
                    }
                }
                return bad;
            }""", [allowed])
        assert not found, found
    page.wait_for_timeout(500)
    assert page.evaluate("window.hacked") is None
    for link in page.locator("#log .body a").all():
        assert not link.get_attribute("href").lower().startswith(("javascript:", "data:", "vbscript:", "file:"))
    assert not visit.dialogs and page.url.rstrip("/") == visit.address.rstrip("/")
    visit.no_errors()


def huge_nesting_is_quick(visit):
    texts = {
        "quotes": ">" * 5000 + " x", "lists": "\n".join(" " * i + "- x" for i in range(500)),
        "brackets": "[" * 20000, "links": "[" * 500 + "a" + "](x:)" * 500, "stars": "*a **b " * 10000,
        "ticks": "".join("`" * (i % 50 + 1) + "a" for i in range(3000)), "dollars": "$a " * 20000,
        "table": "|a" * 5000 + "\n" + "|-" * 5000, "braces": "$" + "{" * 1500 + "$", "frac": "$$" + "\\frac" * 300 + "$$",
        "emphasis": "*" * 30000 + "a", "angle": "<" * 30000, "images": "![" * 10000, "long": "word " * 100000,
        "fences": "```\n" * 5000, "escape": "\\" * 20001, "sub": "$" + "_{a" * 400 + "}" * 400 + "$",
    }
    slow = visit.page.evaluate(
        """async (texts) => {
            const { render } = await import("/page/markdown.js");
            const slow = [];
            for (const [name, text] of Object.entries(texts)) {
                const target = document.createElement("div");
                const start = performance.now();
                render(target, text);
                const time = performance.now() - start;
                if (time > 1500 || target.textContent.trim() === "") slow.push([name, Math.round(time)]);
            }
            return slow;
        }""", texts)
    assert not slow, slow
    visit.no_errors()


def streaming_equals_whole(visit):
    """Rendering a growing text gives the same blocks as rendering it once."""
    for file in sorted(CORPUS.glob("*.md")):
        same = visit.page.evaluate(
            """async (text) => {
                const { render } = await import("/page/markdown.js");
                const [whole, grown] = [document.createElement("div"), document.createElement("div")];
                render(whole, text);
                for (let end = 0; end <= text.length; end += 7) render(grown, text.slice(0, end));
                render(grown, text);
                return whole.isEqualNode(grown);
            }""", file.read_text(encoding="utf-8"))
        assert same, file.name
    visit.no_errors()


def a_full_browser_is_reported(visit):
    page = visit.page
    page.evaluate(
        """() => {
            IDBObjectStore.prototype.put = () => { throw new DOMException("", "QuotaExceededError"); };
        }""")
    visit.ask("Hello")
    assert "storage is full" in page.inner_text("#error-text")
    assert visit.bodies()[-1] == "You said: Hello"
    visit.no_errors()


def works_without_storage(visit):
    page = visit.context.new_page()
    page.add_init_script("Object.defineProperty(window, 'indexedDB', { value: undefined })")
    page.add_init_script("Object.defineProperty(window, 'localStorage', { get() { throw new Error('denied'); } })")
    visit.page = page
    visit.watch(page)
    page.goto(visit.address)
    visit.wait("document.querySelector('#model option')")
    visit.ask("Hello")
    assert visit.bodies()[-1] == "You said: Hello"
    assert "does not store" in page.inner_text("#error-text")
    visit.no_errors()


def answers_continue_in_background(visit):
    page = visit.page
    visit.ask("count", wait=False)
    visit.wait("document.querySelector('#log article:last-child .body').textContent.length > 3")
    page.click("#new-chat")
    visit.ask("Hello")
    assert visit.bodies() == ["Hello", "You said: Hello"]
    page.click(".conversation:not([aria-current])")
    assert page.is_visible("#stop"), "the other answer still runs"
    before = len(visit.bodies()[-1])
    visit.wait(f"document.querySelector('#log article:last-child .body').textContent.length > {before}")
    page.click("#stop")
    visit.wait_for_answer()
    visit.no_errors()


def key_is_asked_for(browser, mock):
    server, address = mock.start(key="right")
    with Visit(browser, address) as visit:
        visit.ask("Hello")
        assert "API key" in visit.last(".note").inner_text()
        visit.page.click("#open-settings")
        visit.page.fill("#set-key", "right")
        visit.page.press("#set-key", "Tab")
        visit.page.keyboard.press("Escape")
        visit.tool("Regenerate answer")
        visit.wait_for_answer()
        assert visit.bodies()[-1] == "You said: Hello"
        assert visit.page.evaluate("JSON.stringify(localStorage)").find("right") < 0
        visit.page.reload()
        visit.page.wait_for_selector("#log article")
        visit.ask("More")
        assert visit.bodies()[-1] == "You said: More"
        visit.no_errors(allowed=["401"])
    server.shutdown()


ANY_SERVER = [
    types_streams_and_reloads, stops_an_answer, regenerates_and_switches_versions, edits_messages,
    manages_conversations, attaches_files, sends_parameters, keyboard_and_panel, policy_is_strict,
]
MOCK_ONLY = [
    shows_reasoning_and_errors, answers_continue_in_background, a_full_browser_is_reported, works_without_storage,
    renders_markdown, hostile_text_is_inert, huge_nesting_is_quick, streaming_equals_whole,
]
LOOKS = [
    ("light", {"color_scheme": "light"}),
    ("dark", {"color_scheme": "dark"}),
    ("phone", {"color_scheme": "light", "viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}),
    ("phone-dark", {"color_scheme": "dark", "viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}),
]


def serious_findings(page, axe):
    """Findings of axe that are serious or worse, one line each."""
    page.evaluate(axe)
    result = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{rule['id']}: {rule['help']}: {node['html'][:120]} {node['failureSummary'][:200]}"
        for rule in result["violations"] if rule["impact"] in SERIOUS for node in rule["nodes"]
    ]


def check_accessibility(browser, address, axe, folder, text):
    """Returns accessibility and width problems of all screens, colour schemes and sizes; writes screenshots."""
    problems = []
    for name, options in LOOKS:
        with Visit(browser, address, **options) as visit:
            page = visit.page

            def check(screen):
                page.wait_for_timeout(400)
                page.screenshot(path=str(folder / f"{name}-{screen}.png"))
                found = serious_findings(page, axe) if axe else []
                problems.extend(f"{name} {screen}: {line}" for line in found)
                wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
                if wide > 0:
                    problems.append(f"{name} {screen}: {wide} pixels wider than the window")

            check("empty")
            visit.ask(text)
            check("chat")
            page.locator("#scroll").evaluate("node => { node.scrollTop = 0; }")
            check("chat-top")
            if page.is_hidden("#panel"):
                page.click("#toggle-panel")
            page.wait_for_timeout(800)
            check("panel")
            page.locator("#panel").evaluate("node => { node.scrollTop = node.scrollHeight; }")
            check("plan")
            page.click("#close-panel")
            page.click("#open-settings")
            check("settings")
            page.click("#close-settings")
            if page.is_hidden("#sidebar"):
                page.click("#toggle-sidebar")
                check("conversations")
            visit.no_errors()
    return problems
