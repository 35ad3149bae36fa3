//! The program with fakes of CUDA's driver and ROCm (`backends/fakes`), whose devices are the CPU:
//! no test here covers a real GPU.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use fakes::Vendor;

mod launches;

/// Runs the program; driver libraries are searched for in `libraries` first.
fn run(args: &[&str], libraries: &Path, env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
    command.env_clear().env("LD_LIBRARY_PATH", libraries).envs(env.iter().copied());
    command.env("THERMOCLINE_ARG_PROBE_SIZE", "16");
    command.args(args).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Text without the line breaks of a terminal.
fn unwrapped(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether the fakes are available; if not, the reason is printed.
fn fakes_available() -> bool {
    let missing = fakes::missing_reason();
    missing.iter().for_each(|why| println!("skipped: {why}"));
    missing.is_none()
}

/// Generates a text with greedy sampling; returns the text and the notes.
fn story(more: &[&str], env: &[(&str, &str)]) -> (String, String) {
    let args = [&["run", "-p", "Once", "--temp", "0", "-n", "16"], more].concat();
    let output = run(&args, fakes::library_folder(), env);
    let notes = text(&output.stderr);
    assert!(output.status.success(), "{notes}");
    assert!(!notes.contains("panicked"), "{notes}");
    (text(&output.stdout), notes)
}

#[test]
fn fakes_are_listed_with_their_properties() {
    if !fakes_available() {
        return;
    }
    let env = [(Vendor::Cuda.variable(), "devices=2"), (Vendor::Hip.variable(), "arch=gfx1100")];
    let output = run(&["devices", "--json"], fakes::library_folder(), &env);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let devices = report["devices"].as_array().unwrap();
    let named = |name: &str| devices.iter().find(|device| device["name"] == name).unwrap().clone();
    for (name, backend, says) in [
        ("CUDA0", "cuda", "compute capability"),
        ("CUDA1", "cuda", "compute capability"),
        ("HIP0", "hip", "gfx1100"),
    ] {
        let device = named(name);
        assert_eq!(device["backend"], backend);
        assert!(device["description"].as_str().unwrap().contains(says), "{device}");
        assert!(device["memory"]["free"].as_u64().unwrap() > 0, "{device}");
    }
    let missing = report["missing"].as_array().unwrap();
    assert!(missing.iter().all(|m| m["backend"] == "wgpu"), "{missing:?}");
}

#[test]
fn generation_is_identical_on_fakes() {
    if !fakes_available() {
        return;
    }
    let (expected, _) = story(&["--backend", "cpu"], &[]);
    for (backend, device) in [("cuda", "CUDA0"), ("hip", "HIP0")] {
        for layers in ["all", "2"] {
            let (words, notes) = story(&["--backend", backend, "-ngl", layers], &[]);
            assert_eq!(words, expected, "{notes}");
            let placed = if layers == "all" { "4 of 4" } else { "2 of 4" };
            assert!(notes.contains(&format!("{device}: {placed} layers")), "{notes}");
        }
    }
}

/// A kernel file that reads a wrong lane: another one takes its place, or its op runs on the CPU
/// alone. The notes say so in one line, and the words stay the same.
#[test]
fn wrong_kernels_are_found_when_the_model_is_loaded() {
    if !fakes_available() {
        return;
    }
    let (expected, _) = story(&["--backend", "cpu"], &[]);
    let long = "Once upon a time there was a little girl named Lily who loved to play outside";
    let (continued, _) = story(&["--backend", "cpu", "-p", long], &[]);
    // The replaced kernel is used for prompts alone, and its products are wrong by a thousandth.
    let settings = "wrong_unit=matmul_many major=8 minor=0";
    let more = ["--backend", "cuda", "-ngl", "all", "-p", long];
    let (words, notes) = story(&more, &[(Vendor::Cuda.variable(), settings)]);
    let notes = unwrapped(&notes);
    assert_eq!(words, continued, "{notes}");
    assert!(notes.contains("wrong in the self-test: matmul_many.f16 ("), "{notes}");
    assert!(notes.contains("now replaced") && notes.contains("CUDA0: 4 of 4 layers"), "{notes}");
    for (vendor, backend, unit, kind) in [
        (Vendor::Hip, "hip", "attention", "Attention of F16, F16"),
        (Vendor::Cuda, "cuda", "ffn_few", "SparseFfn of F16"),
    ] {
        let settings = format!("wrong_unit={unit}");
        let env = [(vendor.variable(), settings.as_str())];
        let (words, notes) = story(&["--backend", backend, "-ngl", "all"], &env);
        let notes = unwrapped(&notes);
        assert_eq!(words, expected, "{unit}: {notes}");
        let refused = format!("0: wrong in the self-test: {kind}");
        assert!(notes.contains(&refused) && notes.contains(&format!("{unit}.f16")), "{notes}");
        assert!(notes.contains("none of the 4 layers"), "{unit}: {notes}");
        // Without the test, the words are wrong.
        let untested = ["--device-options", "self-test=off", "--backend", backend, "-ngl", "all"];
        let (wrong, notes) = story(&untested, &env);
        assert!(wrong != expected && !notes.contains("self-test"), "{unit}: {notes}");
    }
}

/// ROCm's compiler crashes, as 5.2 does for an architecture that it does not know: the program goes
/// on without the device.
#[test]
fn a_crash_of_the_compiler_does_not_end_the_program() {
    if !fakes_available() {
        return;
    }
    let (expected, _) = story(&["--backend", "cpu"], &[]);
    let env = [(Vendor::Hip.variable(), "crash_compiling=1")];
    let (words, notes) = story(&["--backend", "hip", "-ngl", "all"], &env);
    let notes = unwrapped(&notes);
    assert_eq!(words, expected, "{notes}");
    assert!(notes.contains("HIP0 is not used") && notes.contains("compiler crashed"), "{notes}");
    assert!(notes.contains("signal: 6"), "{notes}");
    // A compiler that rejects a kernel says why, through the other process.
    let env = [(Vendor::Hip.variable(), "refuse_compiling=1")];
    let (words, notes) = story(&["--backend", "hip", "-ngl", "all"], &env);
    assert_eq!(words, expected, "{notes}");
    assert!(unwrapped(&notes).contains("rejected because of the setting"), "{notes}");
    // The request comes from this program alone.
    let output = run(&["compile-kernel"], fakes::library_folder(), &[]);
    assert!(!output.status.success());
    assert!(text(&output.stderr).contains("no kernel was compiled"), "{}", text(&output.stderr));
}

/// The result is kept by device, driver and kernels.
#[test]
fn kernels_are_tested_once() {
    if !fakes_available() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().to_str().unwrap();
    let n_kept = |settings: &str| {
        let env = [(Vendor::Cuda.variable(), settings), ("XDG_CACHE_HOME", cache)];
        let (_, notes) = story(&["--backend", "cuda", "-ngl", "all", "-v"], &env);
        assert_eq!(
            notes.contains("wrong in the self-test"),
            settings != "version=12080",
            "{notes}"
        );
        let path = folder.path().join("thermocline/speeds-4.json");
        let kept: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let all = kept.as_object().unwrap();
        all.keys().filter(|key| key.contains("self-test")).count()
    };
    assert_eq!(n_kept("wrong_unit=ffn_few"), 1);
    // The first result holds although the kernel is right now, and work is submitted in another way.
    assert_eq!(n_kept("units=4 blocking_graphs=1"), 1);
    assert_eq!(n_kept("version=12080"), 2, "another driver is another device");
}

#[test]
fn generation_continues_after_the_loss_of_a_fake() {
    if !fakes_available() {
        return;
    }
    let (expected, _) = story(&["--backend", "cpu"], &[]);
    let mut in_the_middle = 0;
    // The probe that chooses between graphs and single launches takes more than ten thousand
    // launches; generating a text takes a few hundred. Because of the delay per submission, the
    // probe prefers graphs on any machine.
    for launches in [40, 12_900, 13_050, 13_250, 13_450] {
        let settings = format!("delay_us=50 lost_after={launches} lost_code=700");
        let env = [(Vendor::Cuda.variable(), settings.as_str())];
        let (words, notes) = story(&["--backend", "cuda", "-ngl", "all"], &env);
        assert_eq!(words, expected, "{launches}: {notes}");
        assert!(notes.contains("CUDA0 was lost"), "{launches}: {notes}");
        in_the_middle += usize::from(notes.contains("continuing without it"));
    }
    assert!(in_the_middle > 0, "some loss happens after the first token");
}

#[test]
fn an_unusable_driver_is_noted() {
    if !fakes_available() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fakes::copy_without(Vendor::Cuda, "cuLaunchKernel", folder.path()).unwrap();
    let kernels = fakes::library_folder().join("libfake_kernels.so");
    if kernels.exists() {
        std::fs::copy(&kernels, folder.path().join("libfake_kernels.so")).unwrap();
    }
    let all = fakes::library_folder();
    for (libraries, settings, says) in [
        (all, "version=11040", "too old: it supports CUDA 11.4"),
        (all, "devices=0", "no device"),
        (all, "init=803", "the driver does not work: cuInit failed with 803"),
        (all, "major=6 minor=1", "compute capability 6.1 is too old; 7.5"),
        (folder.path(), "", "the driver's library has no function cuLaunchKernel"),
    ] {
        let env = [(Vendor::Cuda.variable(), settings)];
        let output = run(&["devices"], libraries, &env);
        let listed = text(&output.stdout);
        let cuda = listed.split_once("cuda: ").map(|(_, rest)| unwrapped(rest)).unwrap_or_default();
        assert!(cuda.contains(says), "{settings}: {listed}{}", text(&output.stderr));
        assert!(output.status.success() && !text(&output.stderr).contains("panicked"));
        // A requested device that is missing ends the program, with a hint.
        let failed = run(&["run", "-n", "1", "--backend", "cuda"], libraries, &env);
        let notes = unwrapped(&text(&failed.stderr));
        assert!(failed.status.code() == Some(5) && notes.contains(says), "{notes}");
        assert!(notes.contains("help: "), "{notes}");
    }
}

#[test]
fn backends_are_compared_on_their_own_devices() {
    if !fakes_available() {
        return;
    }
    let bench = |more: &[&str]| {
        let size = ["--synthetic", "256x2x512x4/4:Q4_0:relu", "-p", "0", "-n", "1", "-r", "1"];
        let args =
            [&["bench"][..], &size, &["--device", "CUDA0,HIP0", "-o", "json"], more].concat();
        run(&args, fakes::library_folder(), &[])
    };
    let output = bench(&["--backend", "cpu,cuda,hip", "-ngl", "1"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let devices: Vec<_> = rows.as_array().unwrap().iter().map(|row| &row["devices"]).collect();
    assert_eq!(devices, ["none", "CUDA0", "HIP0"], "{rows:#}");
    let output = bench(&["--backend", "cpu,cuda"]);
    let notes = text(&output.stderr);
    assert!(output.status.code() == Some(5) && notes.contains("no device 'HIP0'"), "{notes}");
}

/// The first versions of ROCm 5 lack calls for graphs, so work is submitted launch by launch.
#[test]
fn a_driver_without_graphs_is_used_without_them() {
    if !fakes_available() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    fakes::copy_without(Vendor::Cuda, "cuGraphLaunch", folder.path()).unwrap();
    let kernels = fakes::library_folder().join("libfake_kernels.so");
    std::fs::copy(&kernels, folder.path().join("libfake_kernels.so")).unwrap();
    let (expected, _) = story(&["--backend", "cpu"], &[]);
    let args = ["run", "-p", "Once", "--temp", "0", "-n", "16", "--backend", "cuda", "-ngl", "2"];
    let output = run(&args, folder.path(), &[]);
    assert_eq!(text(&output.stdout), expected, "{}", text(&output.stderr));
}

#[test]
fn the_program_links_no_vendor_library() {
    let program = env!("CARGO_BIN_EXE_thermocline");
    let Ok(output) = Command::new("ldd").arg(program).output() else {
        return println!("skipped: ldd is not installed");
    };
    let linked = text(&output.stdout);
    for library in ["cuda", "nvrtc", "amdhip", "hiprtc", "vulkan"] {
        assert!(!linked.contains(library), "{linked}");
    }
}
