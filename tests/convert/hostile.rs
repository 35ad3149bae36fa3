//! Checkpoints with false contents, and pickles that would run code: each is rejected with a
//! message, and none panics.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use thermocline::convert::tensors;

use super::make;

fn error_of(name: &str, bytes: Vec<u8>) -> String {
    tensors(name, bytes).expect_err("refused").to_string()
}

#[test]
fn invalid_safetensors_are_rejected() {
    let entry = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"dtype": "{dtype}", "shape": {shape}, "data_offsets": {offsets}}}"#)
    };
    let cases = [
        (format!(r#"{{"a": {}}}"#, entry("F32", "[2]", "[0, 8]")), "ends at byte 8"),
        (format!(r#"{{"a": {}}}"#, entry("F32", "[1]", "[4, 0]")), "has bytes 4 to 0"),
        (format!(r#"{{"a": {}}}"#, entry("F16", "[1]", "[0, 4]")), "need 2"),
        (
            format!(r#"{{"a": {}}}"#, entry("F32", "[4294967296, 4294967296]", "[0, 0]")),
            "need more than 2^64",
        ),
        (format!(r#"{{"a": {}}}"#, entry("F99", "[1]", "[0, 4]")), "unknown type `F99`"),
        (format!(r#"{{"a": {0}, "a": {0}}}"#, entry("U8", "[1]", "[0, 1]")), "occurs twice"),
        (
            format!(
                r#"{{"a": {}, "b": {}}}"#,
                entry("U8", "[3]", "[0, 3]"),
                entry("U8", "[2]", "[2, 4]")
            ),
            "overlap",
        ),
        (
            format!(
                r#"{{"a": {}, "b": {}}}"#,
                entry("U8", "[1]", "[0, 1]"),
                entry("U8", "[2]", "[2, 4]")
            ),
            "bytes 1 to 2 of the data belong to no tensor",
        ),
        (format!(r#"{{"a": {}}}"#, entry("U8", "[3]", "[0, 3]")), "bytes 3 to 4 of the data"),
        (format!(r#"{{"a": {}}}"#, entry("U8", "[1,1,1,1,1,1,1,1,1]", "[0, 1]")), "9 axes"),
        (format!(r#"{{"a": {}}}"#, entry("U8", "[-1]", "[0, 1]")), "cannot be read"),
        ("{".to_owned(), "cannot be read"),
        ("[]".to_owned(), "cannot be read"),
        ("[".repeat(10_000), "cannot be read"),
    ];
    for (header, expected) in cases {
        let error = error_of("x.safetensors", make::safetensors_of(&header, &[0; 4]));
        assert!(error.contains(expected), "{error} should say {expected}");
    }
    for length in [9u64, 100_000_001, u64::MAX] {
        let mut file = length.to_le_bytes().to_vec();
        file.extend(b"{}");
        let error = error_of("x.safetensors", file);
        assert!(error.contains("header"), "{error}");
    }
    assert!(error_of("x.safetensors", vec![1, 2, 3]).contains("header"));
}

fn with_pickle(pickle: &[u8]) -> Vec<u8> {
    make::zip(&[("a/data.pkl".to_owned(), pickle.to_vec())])
}

#[test]
fn pickles_execute_no_code() {
    let cases: [(&[u8], &str); 16] = [
        (b"\x80\x02cos\nsystem\n(X\x02\0\0\0lstR.", "`os.system`"),
        (b"\x80\x04\x8c\x08builtins\x8c\x04exec\x93.", "`builtins.exec`"),
        (b"\x80\x02(ios\nsystem\n.", "INST"),
        (b"\x80\x02c__builtin__\neval\n.", "`__builtin__.eval`"),
        (b"\x80\x02ctorch\nload\n.", "`torch.load`"),
        (b"\x80\x02(os\n.", "OBJ"),
        (b"\x80\x02)\x81.", "NEWOBJ"),
        (b"\x80\x02\x82\x01.", "EXT1"),
        (b"\x80\x02}2.", "DUP"),
        (b"\x80\x02\xff.", "0xff"),
        (b"\x80\x09.", "protocol 9"),
        (b"\x80\x02ctorch\nFloatStorage\n)R.", "a storage is malformed"),
        (b"\x80\x02}(K\x01u.", "value for each key"),
        (b"\x80\x02K\x01.", "neither a dictionary"),
        (b"\x80\x02R.", "REDUCE found no arguments"),
        (b"\x80\x02X\xff\xff\xff\x7fab", "ends inside an opcode"),
    ];
    for (pickle, expected) in cases {
        let error = error_of("x.bin", with_pickle(pickle));
        assert!(error.contains(expected), "{error} should say {expected}");
    }
    // A dictionary of numbers is allowed, but it has no tensors.
    assert_eq!(tensors("x.bin", with_pickle(b"\x80\x02}(X\x01\0\0\0aK\x01u.")).unwrap(), []);
}

#[test]
fn nested_and_shared_pickle_values_stay_cheap() {
    let mut deep = b"\x80\x02".to_vec();
    deep.extend(b"]".repeat(1 << 20));
    deep.extend(b"a".repeat((1 << 20) - 1));
    deep.push(b'.');
    assert!(error_of("x.bin", with_pickle(&deep)).contains("neither a dictionary"));
    // Each tuple contains the previous tuple twice. Expanded, the last one would have 2^100000
    // values.
    let mut bomb = b"\x80\x02)q\0".to_vec();
    bomb.extend(b"h\0\x86q\0h\0".repeat(100_000));
    bomb.push(b'.');
    assert!(error_of("x.bin", with_pickle(&bomb)).contains("neither a dictionary"));
    let mut tuples = b"\x80\x02)".to_vec();
    tuples.extend(b"\x85".repeat(1 << 20));
    tuples.extend(b".");
    assert!(error_of("x.bin", with_pickle(&tuples)).contains("neither a dictionary"));
}

/// Names and shapes are copied for each tensor that shares them, so their length is limited.
#[test]
fn names_and_shapes_are_limited_and_names_are_unique() {
    let weight = |name: &str, shape: &[u64]| vec![(name.to_owned(), shape.to_vec(), vec![0.0])];
    let file = |weights: &[make::Weight]| make::torch(weights, &[]);
    assert_eq!(tensors("x.bin", file(&weight(&"n".repeat(1024), &[1]))).unwrap().len(), 1);
    let error = error_of("x.bin", file(&weight(&"n".repeat(1025), &[1])));
    assert!(error.contains("1025 bytes"), "{error}");
    let error = error_of("x.bin", file(&weight("w", &[1; 9])));
    assert!(error.contains("9 axes"), "{error}");
    let twice = [weight("w", &[1]), weight("w", &[1])].concat();
    assert!(error_of("x.bin", file(&twice)).contains("tensor `w` occurs twice"));
    // A storage with its class, a key of 1025 bytes, its device and its size.
    let mut key = b"\x80\x02(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\x04\0\0".to_vec();
    key.extend([b'k'; 1025]);
    key.extend(b"X\x03\0\0\0cpuK\x01tQ.");
    assert!(error_of("x.bin", with_pickle(&key)).contains("1025 bytes"));
}

#[test]
fn tensors_stay_inside_their_storage() {
    let weights = vec![("w".to_owned(), vec![2, 3], vec![0.0; 6])];
    let pickle = make::pickle(&weights, &[]);
    let members = |pickle: &[u8], bytes: usize| {
        make::zip(&[
            ("a/data.pkl".to_owned(), pickle.to_vec()),
            ("a/data/0".to_owned(), vec![0; bytes]),
        ])
    };
    assert_eq!(tensors("x.bin", members(&pickle, 24)).unwrap(), [("w".to_owned(), vec![2, 3])]);
    assert!(error_of("x.bin", members(&pickle, 23)).contains("storage of 23 bytes"));
    assert!(error_of("x.bin", with_pickle(&pickle)).contains("no member `a/data/0`"));
    // A stride of zero would repeat one row.
    let stretched: Vec<u8> = pickle.clone();
    let at = stretched.windows(10).position(|w| w == b"J\x03\0\0\0J\x01\0\0\0").unwrap();
    let mut stretched = stretched;
    stretched[at + 1] = 0;
    assert!(error_of("x.bin", members(&stretched, 24)).contains("strides"));
}

#[test]
fn damaged_archives_are_rejected() {
    let whole = make::torch(&make::weights(), &[]);
    for len in (0..whole.len()).step_by(7) {
        assert!(tensors("x.bin", whole[..len].to_vec()).is_err(), "{len} bytes");
    }
    // Offsets in the first member's directory entry: flags at 8, method at 10, size at 24.
    let entry = whole.windows(4).position(|w| w == b"PK\x01\x02").unwrap();
    let changed = |at: usize, value: u8| {
        let mut file = whole.clone();
        file[entry + at] = value;
        error_of("x.bin", file)
    };
    assert!(changed(10, 8).contains("compressed"));
    assert!(changed(8, 1).contains("encrypted"));
    assert!(changed(24, 0xff).contains("compressed"));
    let twice = [("a/data.pkl".to_owned(), vec![b'.']), ("a/data.pkl".to_owned(), vec![b'.'])];
    assert!(error_of("x.bin", make::zip(&twice)).contains("occurs twice"));
    assert!(
        error_of("x.bin", b"\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20".to_vec())
            .contains("not a zip archive")
    );
}

/// Changes, inserts or repeats bytes or truncates the file, one to five times.
fn mutate(bytes: &mut Vec<u8>, rng: &mut ChaCha8Rng) {
    for _ in 0..rng.random_range(1..6) {
        let at = rng.random_range(0..bytes.len());
        match rng.random_range(0..6) {
            0 => bytes[at] = rng.random(),
            1 => bytes[at] ^= 1 << rng.random_range(0..8),
            2 => bytes.truncate(at + 1),
            3 => bytes.insert(at, rng.random()),
            4 => bytes[at] = [0, 0xff, 0x7f, 0x80][rng.random_range(0..4)],
            _ => {
                let end = (at + rng.random_range(1..16)).min(bytes.len());
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part);
            }
        }
    }
}

fn mutate_many(rounds: u64) {
    let weights = make::weights();
    let seeds =
        [("x.safetensors", make::safetensors(&weights)), ("x.bin", make::torch(&weights, &[]))];
    let mut n_read = 0;
    for seed in 0..rounds {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        for (name, bytes) in &seeds {
            let mut bytes = bytes.clone();
            mutate(&mut bytes, &mut rng);
            n_read += usize::from(tensors(name, bytes).is_ok());
        }
        // The archive is valid here; only the opcodes in it are changed or random.
        let mut opcodes = make::pickle(&weights[..2], &[]);
        if seed % 2 == 0 {
            opcodes = (0..rng.random_range(0..64)).map(|_| rng.random::<u8>()).collect();
            opcodes.push(b'.');
        }
        mutate(&mut opcodes, &mut rng);
        n_read += usize::from(tensors("x.bin", with_pickle(&opcodes)).is_ok());
    }
    // Some changed files must still be readable; otherwise only the first check would be tested.
    assert!(n_read > rounds as usize / 20, "{n_read}");
}

#[test]
fn changed_bytes_never_panic() {
    mutate_many(2000);
}

/// Takes minutes; run it by name in release mode: `cargo test --release --test main -- --ignored
/// changed_bytes`.
#[test]
#[ignore = "takes minutes"]
fn changed_bytes_never_panic_long() {
    mutate_many(6_000_000);
}
