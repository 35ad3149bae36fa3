//! Tests the cache of compiled kernels on a fake ROCm.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use fakes::{Fake, Vendor};
use hal::Error;
use simt::Options;
use thermocline_hip::{Compilation, devices, open_with};

/// The compiler's output is cached. An intact file is used; a damaged file is compiled again.
#[test]
fn kernels_of_the_fake_are_cached() {
    let fake = match Fake::load(Vendor::Hip) {
        Ok(fake) => fake,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let folder = tempfile::tempdir().expect("a folder");
    let found = devices().expect("the fake has devices");
    let folder_of_kernels = Some(folder.path().to_owned());
    let cached = Compilation { folder: folder_of_kernels, ..Compilation::default() };
    let open = || open_with(&found[0], &cached, Options::default());
    let files = || -> Vec<_> {
        let entries = std::fs::read_dir(folder.path()).expect("the folder");
        entries.map(|entry| entry.expect("an entry").path()).collect()
    };
    open().expect("a device");
    let written = files();
    assert!(
        !written.is_empty()
            && written.iter().all(|file| file.extension().is_some_and(|e| e == "hip"))
    );
    let whole = std::fs::read(&written[0]).expect("a file");
    std::fs::write(&written[0], &whole[..whole.len() - 1]).expect("a write");
    open().expect("a damaged kernel is compiled again");
    assert_eq!(std::fs::read(&written[0]).expect("a file"), whole);
    fake.set("refuse_compiling=1");
    let from_cache = open();
    let compiled = open_with(&found[0], &Compilation::default(), Options::default());
    fake.set("refuse_compiling=0");
    from_cache.expect("cached kernels need no compiler");
    let Err(Error::Driver { call, message, .. }) = compiled else { panic!("{compiled:?}") };
    assert!(call.contains("hiprtcCompileProgram") && message.contains("FAKE"), "{call}: {message}");
}
