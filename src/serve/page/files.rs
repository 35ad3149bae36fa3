//! The files of the page, embedded in the program.

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// Name, content type, contents.
#[rustfmt::skip]
pub(super) const FILES: &[(&str, &str, &[u8])] = &[
    ("index.html", HTML, include_bytes!("index.html")),
    ("icon.svg", SVG, include_bytes!("icon.svg")),
    ("message.css", CSS, include_bytes!("message.css")),
    ("panel.css", CSS, include_bytes!("panel.css")),
    ("style.css", CSS, include_bytes!("style.css")),
    ("api.js", SCRIPT, include_bytes!("api.js")),
    ("app.js", SCRIPT, include_bytes!("app.js")),
    ("attach.js", SCRIPT, include_bytes!("attach.js")),
    ("cells.js", SCRIPT, include_bytes!("cells.js")),
    ("chat.js", SCRIPT, include_bytes!("chat.js")),
    ("dom.js", SCRIPT, include_bytes!("dom.js")),
    ("drawers.js", SCRIPT, include_bytes!("drawers.js")),
    ("highlight.js", SCRIPT, include_bytes!("highlight.js")),
    ("inline.js", SCRIPT, include_bytes!("inline.js")),
    ("markdown.js", SCRIPT, include_bytes!("markdown.js")),
    ("math.js", SCRIPT, include_bytes!("math.js")),
    ("panel.js", SCRIPT, include_bytes!("panel.js")),
    ("picture.js", SCRIPT, include_bytes!("picture.js")),
    ("plan.js", SCRIPT, include_bytes!("plan.js")),
    ("settings.js", SCRIPT, include_bytes!("settings.js")),
    ("sidebar.js", SCRIPT, include_bytes!("sidebar.js")),
    ("store.js", SCRIPT, include_bytes!("store.js")),
    ("symbols.js", SCRIPT, include_bytes!("symbols.js")),
    ("transcript.js", SCRIPT, include_bytes!("transcript.js")),
    ("tree.js", SCRIPT, include_bytes!("tree.js")),
    ("view.js", SCRIPT, include_bytes!("view.js")),
];

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_BYTES: usize = 160_000;
    const MAX_LINES: usize = 500;

    #[test]
    fn every_file_is_served_and_small() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/page");
        for entry in std::fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let listed = FILES.iter().any(|(known, ..)| *known == name);
            assert!(listed || name.ends_with(".rs"), "{name} is not in FILES");
        }
        let sum: usize = FILES.iter().map(|(_, _, contents)| contents.len()).sum();
        assert!(sum < MAX_BYTES, "{sum} bytes");
        for (name, _, contents) in FILES {
            let lines = contents.iter().filter(|byte| **byte == b'\n').count();
            assert!(lines < MAX_LINES, "{name} has {lines} lines");
        }
    }

    #[test]
    fn the_page_has_no_external_or_inline_code() {
        for (name, kind, contents) in FILES {
            let text = std::str::from_utf8(contents).unwrap();
            let denied: &[&str] = match *kind {
                HTML => &["<script>", "style=", "onclick=", "onload=", "http://", "https://"],
                SCRIPT => &["innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("],
                CSS => &["@import", "url("],
                _ => &["<script", "href="],
            };
            for phrase in denied {
                assert!(!text.contains(phrase), "{name} has {phrase}");
            }
        }
    }

    #[test]
    fn imported_files_are_served() {
        for (name, kind, contents) in FILES.iter().filter(|(_, kind, _)| *kind == SCRIPT) {
            let text = std::str::from_utf8(contents).unwrap();
            for after in text.split("from \"./").skip(1) {
                let used = after.split('"').next().unwrap();
                let found = FILES.iter().any(|(known, ..)| *known == used);
                assert!(found, "{name} ({kind}) imports {used}");
            }
        }
    }
}
