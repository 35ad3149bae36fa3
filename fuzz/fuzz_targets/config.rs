//! Converts a folder with one small tensor and arbitrary bytes as `config.json`: the conversion
//! must succeed or return an error.
#![no_main]

use std::fs;
use std::ops::ControlFlow;

use libfuzzer_sys::fuzz_target;
use thermocline::convert::{Conversion, OutType};

fuzz_target!(|config: &[u8]| {
    let Ok(folder) = tempfile::tempdir() else { return };
    let header =
        br#"{"model.embed_tokens.weight":{"dtype":"F16","shape":[2,2],"data_offsets":[0,8]}}"#;
    let weights = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 8]].concat();
    let path = |name: &str| folder.path().join(name);
    if fs::write(path("config.json"), config).is_err()
        || fs::write(path("model.safetensors"), weights).is_err()
    {
        return;
    }
    let job = Conversion {
        folder: folder.path().to_owned(),
        predictor: None,
        output: path("x.gguf"),
        out_type: OutType::Auto,
        container: None,
        pre: None,
        name: None,
        force: true,
    };
    let _ = job.run(&|_, _| ControlFlow::Continue(()));
});
