//! Streams, events, graphs and failures of the fake drivers.

use std::ffi::{CStr, CString, c_char, c_int, c_ulonglong, c_void};
use std::process::Command;
use std::ptr;
use std::time::{Duration, Instant};

use libloading::Library;
use thermocline_fakes::{Vendor, copy_without};

use super::device::{Arg, Device, INVALID_HANDLE, LAUNCH_FAILED, NOT_FOUND, NOT_READY, Raw, open};

const WORDS: &str = "shim_words";

fn devices(ordinal: i32) -> impl Iterator<Item = Device> {
    [Vendor::Cuda, Vendor::Hip].into_iter().filter_map(move |vendor| open(vendor, ordinal))
}

fn event(device: &Device) -> Raw {
    let mut event = ptr::null_mut();
    assert_eq!(device.create("cuEventCreate", "hipEventCreateWithFlags", &mut event, 0), 0);
    event
}

#[test]
fn calls_return_before_the_work_is_done() {
    for device in devices(0) {
        // Kernels wait until `release=1`.
        device.fake.set("0:delay_us=40000 0:hang_after=0");
        let x = device.buffer(&[0; 64]);
        let (before, after) = (event(&device), event(&device));
        let scale = device.function(WORDS, "scale");
        let record =
            |event| device.call_two("cuEventRecord", "hipEventRecord", event, device.stream);
        assert_eq!(record(before), 0);
        // The driver must copy the argument values during the call, as they are dropped after it.
        for n in [64, 0] {
            assert_eq!(
                device.start(scale, [1, 1, 1], 64, 0, &[Arg::At(x), Arg::Float(0.0), Arg::Word(n)]),
                0
            );
        }
        assert_eq!(record(after), 0);
        assert_eq!(device.call("cuEventQuery", "hipEventQuery", after), NOT_READY);
        device.fake.set("0:release=1");
        assert_eq!(device.call("cuEventSynchronize", "hipEventSynchronize", after), 0);
        assert_eq!(device.call("cuEventQuery", "hipEventQuery", before), 0);
        let mut milliseconds = 0.0f32;
        // SAFETY: types as in the vendors' headers.
        let code = unsafe {
            let elapsed: unsafe extern "C" fn(*mut f32, Raw, Raw) -> c_int =
                device.find("cuEventElapsedTime", "hipEventElapsedTime");
            elapsed(&raw mut milliseconds, before, after)
        };
        assert_eq!(code, 0);
        assert!(milliseconds >= 100.0, "{milliseconds} ms");
        device.fake.set("0:delay_us=0");
        assert_eq!(device.read(x, 64), (0..64).map(|i| (i as f32).to_bits()).collect::<Vec<_>>());
        for event in [before, after] {
            assert_eq!(device.call("cuEventDestroy_v2", "hipEventDestroy", event), 0);
            assert_eq!(device.call("cuEventDestroy_v2", "hipEventDestroy", event), INVALID_HANDLE);
        }
    }
}

#[test]
fn captured_work_runs_at_each_launch_of_its_graph() {
    for device in devices(1) {
        let x = device.buffer(&[0; 64]);
        let scale = device.function(WORDS, "scale");
        let (mut graph, mut exec) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: types as in the vendors' headers.
        unsafe {
            let begin: unsafe extern "C" fn(Raw, c_int) -> c_int =
                device.find("cuStreamBeginCapture_v2", "hipStreamBeginCapture");
            assert_eq!(begin(device.stream, 2), 0);
        }
        let args = [Arg::At(x), Arg::Float(2.0), Arg::Word(64)];
        assert_eq!(device.start(scale, [1, 1, 1], 64, 0, &args), 0);
        // SAFETY: types as in the vendors' headers.
        unsafe {
            let end: unsafe extern "C" fn(Raw, *mut Raw) -> c_int =
                device.find("cuStreamEndCapture", "hipStreamEndCapture");
            assert_eq!(end(device.stream, &raw mut graph), 0);
            let instantiate: unsafe extern "C" fn(*mut Raw, Raw, c_ulonglong) -> c_int =
                device.find("cuGraphInstantiateWithFlags", "hipGraphInstantiateWithFlags");
            assert_eq!(instantiate(&raw mut exec, graph, 0), 0);
        }
        assert_eq!(device.read(x, 64), [0; 64], "the kernel does not run during the capture");
        for _ in 0..3 {
            assert_eq!(device.call_two("cuGraphLaunch", "hipGraphLaunch", exec, device.stream), 0);
        }
        let want: Vec<u32> = (0..64).map(|i| (7.0 * i as f32).to_bits()).collect();
        assert_eq!(device.read(x, 64), want);
        assert_eq!(device.fake.count(1, "lost"), 0);
        assert_eq!(device.call("cuGraphExecDestroy", "hipGraphExecDestroy", exec), 0);
        assert_eq!(device.call("cuGraphDestroy", "hipGraphDestroy", graph), 0);
        assert_eq!(
            device.call_two("cuGraphLaunch", "hipGraphLaunch", exec, device.stream),
            INVALID_HANDLE
        );
    }
}

#[test]
fn waiting_for_a_capturing_stream_invalidates_the_capture() {
    for device in devices(1) {
        let mut graph = ptr::null_mut();
        // SAFETY: types as in the vendors' headers.
        unsafe {
            let begin: unsafe extern "C" fn(Raw, c_int) -> c_int =
                device.find("cuStreamBeginCapture_v2", "hipStreamBeginCapture");
            assert_eq!(begin(device.stream, 2), 0);
            assert_eq!(device.finish(), 900);
            let end: unsafe extern "C" fn(Raw, *mut Raw) -> c_int =
                device.find("cuStreamEndCapture", "hipStreamEndCapture");
            assert_eq!(end(device.stream, &raw mut graph), 901);
        }
        assert_eq!(device.finish(), 0);
    }
}

#[test]
fn kernels_wait_for_the_host() {
    for device in devices(2) {
        let (go, answer) = (device.buffer(&[0]), device.buffer(&[0]));
        let wait = device.function(WORDS, "wait_for_host");
        let args = |limit| [Arg::At(go), Arg::At(answer), Arg::Word(limit)];
        assert_eq!(device.start(wait, [1, 1, 1], 64, 0, &args(20_000)), 0);
        let mut other = ptr::null_mut();
        assert_eq!(device.create("cuStreamCreate", "hipStreamCreateWithFlags", &mut other, 1), 0);
        std::thread::sleep(Duration::from_millis(20));
        // Sets the flag from another stream, because the device's own stream waits.
        // SAFETY: types as in the vendors' headers.
        unsafe {
            let fill: unsafe extern "C" fn(usize, u32, usize, Raw) -> c_int =
                device.find("cuMemsetD32Async", "hipMemsetD32Async");
            assert_eq!(fill(go, 41, 1, other), 0);
        }
        assert_eq!(device.read(answer, 1), [42]);
        // Without the flag, the kernel times out after 30 ms.
        assert_eq!(device.try_write(go, &[0]), 0);
        let start = Instant::now();
        assert_eq!(device.run((WORDS, "wait_for_host"), 1, 64, 0, &args(30)), 0);
        assert!(start.elapsed() >= Duration::from_millis(30));
        assert_eq!(device.call("cuStreamDestroy_v2", "hipStreamDestroy", other), 0);
    }
}

#[test]
fn devices_fail_as_configured() {
    for device in devices(3) {
        let x = device.buffer(&[0; 64]);
        let scale = device.function(WORDS, "scale");
        let launch =
            || device.start(scale, [1, 1, 1], 64, 0, &[Arg::At(x), Arg::Float(1.0), Arg::Word(64)]);
        device.fake.set("3:refuse_after=1 3:refuse_code=701");
        assert_eq!([launch(), launch(), launch(), device.finish()], [0, 701, 0, 0]);
        device.fake.set("3:lost_after=2");
        assert_eq!([launch(), launch(), device.finish()], [0, 0, 0]);
        assert_eq!([launch(), device.finish()], [0, LAUNCH_FAILED]);
        assert_eq!([launch(), device.finish()], [LAUNCH_FAILED; 2], "the device stays lost");
        device.fake.set("3:reset=1");
        let n = device.fake.count(3, "launches");
        device.fake.set("3:hang_after=0");
        let x = device.buffer(&[0; 64]);
        assert_eq!(
            device.start(scale, [1, 1, 1], 64, 0, &[Arg::At(x), Arg::Float(1.0), Arg::Word(64)]),
            0
        );
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(device.call("cuStreamQuery", "hipStreamQuery", device.stream), NOT_READY);
        device.fake.set("3:release=1");
        assert_eq!(device.finish(), 0);
        assert_eq!(device.fake.count(3, "launches"), n + 1);
        device.fake.set("3:lost=214");
        assert_eq!(device.finish(), 214);
        device.fake.set("3:reset=1");
    }
}

#[test]
fn only_units_and_kernels_that_exist_are_found() {
    for device in devices(1) {
        assert_eq!(device.try_module("shim_word"), Err(200));
        let module = device.try_module(WORDS).expect("the unit exists");
        assert_eq!(device.try_function(module, "nothing"), Err(NOT_FOUND));
        let scale = device.try_function(module, "scale").expect("the kernel exists");
        assert_eq!(device.call("cuModuleUnload", "hipModuleUnload", module), 0);
        assert_eq!(device.start(scale, [1, 1, 1], 64, 0, &[]), INVALID_HANDLE);
    }
}

#[test]
fn hiprtc_finds_kernels_by_the_name_of_the_program() {
    let Some(device) = open(Vendor::Hip, 1) else { return };
    type Create = unsafe extern "C" fn(
        *mut Raw,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int;
    let compile = |unit: &str, source: &str| {
        let mut program = ptr::null_mut();
        let [unit, source, arch] = [unit, source, "--offload-arch=gfx1100"]
            .map(|text| CString::new(text).expect("no NUL"));
        // SAFETY: types as in hiprtc's header; buffers have the requested sizes.
        unsafe {
            let create: Create = device.find("", "hiprtcCreateProgram");
            let (none, options) = (ptr::null(), [arch.as_ptr()]);
            assert_eq!(create(&raw mut program, source.as_ptr(), unit.as_ptr(), 0, none, none), 0);
            let compile: unsafe extern "C" fn(Raw, c_int, *const *const c_char) -> c_int =
                device.find("", "hiprtcCompileProgram");
            let code = compile(program, 1, options.as_ptr());
            let output = if code == 0 { "Code" } else { "ProgramLog" };
            let mut size = 0usize;
            let ask: unsafe extern "C" fn(Raw, *mut usize) -> c_int =
                device.find("", &format!("hiprtcGet{output}Size"));
            assert_eq!(ask(program, &raw mut size), 0);
            let mut bytes = vec![0u8; size];
            let get: unsafe extern "C" fn(Raw, *mut u8) -> c_int =
                device.find("", &format!("hiprtcGet{output}"));
            assert_eq!(get(program, bytes.as_mut_ptr()), 0);
            (code, bytes)
        }
    };
    let (code, image) = compile(WORDS, "KERNEL(scale)(float* x, float a, unsigned n)");
    assert_eq!(code, 0);
    let mut module = ptr::null_mut();
    // SAFETY: types as in the vendors' headers.
    unsafe {
        let load: unsafe extern "C" fn(*mut Raw, *const c_void) -> c_int =
            device.find("", "hipModuleLoadData");
        assert_eq!(load(&raw mut module, image.as_ptr().cast()), 0);
    }
    device.try_function(module, "scale").expect("the kernel exists");
    for (unit, source) in [("nothing", "KERNEL(scale)"), (WORDS, "no such kernel")] {
        let (code, log) = compile(unit, source);
        assert_eq!(code, 6);
        assert!(
            CStr::from_bytes_with_nul(&log).expect("one NUL").to_string_lossy().contains("FAKE")
        );
    }
}

#[test]
fn a_library_can_lack_a_function() {
    if open(Vendor::Cuda, 1).is_none() {
        return;
    }
    let folder = std::env::temp_dir().join(format!("thermocline-fakes-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    copy_without(Vendor::Cuda, "cuGraphLaunch", &folder).expect("the driver has it");
    assert!(copy_without(Vendor::Cuda, "cuNothing", &folder).is_err());
    // SAFETY: this is our own library.
    let library = unsafe { Library::new(folder.join("libcuda.so.1")) }.expect("the copy loads");
    // SAFETY: neither function is called.
    let (gone, left) =
        unsafe { (library.get::<Raw>("cuGraphLaunch"), library.get::<Raw>("cuGraphDestroy")) };
    assert!(gone.is_err() && left.is_ok());
    drop(library);
    std::fs::remove_dir_all(&folder).expect("the folder exists");
}

/// A process reads settings from its environment, so this test starts its own executable with some.
#[test]
fn processes_read_settings_from_their_environment() {
    let Some(device) = open(Vendor::Cuda, 1) else { return };
    if std::env::var_os("FAKES_TESTED").is_some() {
        return;
    }
    drop(device);
    let own_path = std::env::current_exe().expect("the test runs");
    let run = |settings: &str| {
        let output = Command::new(&own_path)
            .args(["--exact", "drivers::load_driver_by_name", "--nocapture"])
            .arg("--include-ignored")
            .env("FAKES_TESTED", "1")
            .env("LD_LIBRARY_PATH", thermocline_fakes::library_folder())
            .env(Vendor::Cuda.variable(), settings)
            .output()
            .expect("the process starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(run("devices=3 version=11000").contains("init 0, version 11000, 3 devices"));
    assert!(run("devices=0").contains("init 100"));
    assert!(run("init=803").contains("init 803"));
}

#[test]
#[ignore = "started by processes_read_settings_from_their_environment"]
fn load_driver_by_name() {
    // SAFETY: the library is the fake in `LD_LIBRARY_PATH`; types as in the vendor's header.
    unsafe {
        let library = Library::new("libcuda.so.1").expect("the fake is in LD_LIBRARY_PATH");
        let init =
            library.get::<unsafe extern "C" fn(u32) -> c_int>("cuInit").expect("cuInit exists");
        let (mut version, mut n) = (0, 0);
        let ask = |name: &str, to: &mut c_int| {
            library.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(name).expect("it exists")(to)
        };
        let code = init(0);
        ask("cuDriverGetVersion", &mut version);
        ask("cuDeviceGetCount", &mut n);
        println!("init {code}, version {version}, {n} devices");
    }
}
