//! Measures speeds once and caches them in the user's cache folder, so that plans, and with them
//! the last bits of results, do not change between starts.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{SystemTime, UNIX_EPOCH};

use engine::DenseFrom;
use gguf::PartFile;
use hal::format::Format;
use hal::{Backend, Bytes, Device, DeviceId};
use learn::learned::lock;
use measure::bench::{Shape, dense_from, round_to_two_digits, speed};
use measure::self_test::Verdict;
use model::Model;
use placement::Speed;
use serde_json::{Map, Value, json};
use store::{DiskSpeed, ReadAt, disk_name};

use crate::devices::PrefetchDistance;
use crate::notice::{Notice, Observer};
use crate::options::{Computation, Sparsity};
use crate::self_test::{read_verdict, verdict_value};

/// Name of the file. The number changes when the meaning of a value changes.
const FILE: &str = "speeds-4.json";

/// Bytes of the file that are read.
const MAX_FILE: u64 = 4 << 20;
/// The file keeps as many values as this, those measured last: a model has about four per device.
const MAX_VALUES: usize = 128;
/// The key of the time of a measurement, in seconds since 1970.
const MEASURED: &str = "measured";
/// What the keys of disks begin with.
const DISK: &str = "disk | ";
/// Most threads that read from a disk.
const MAX_DEPTH: u64 = 64;

/// The shape of the weights that [`measure_speed`] measures with.
const USUAL: Shape = Shape::of_7b_model(Format::Q4_0);
/// A model of this size does not fit into the caches of processors.
pub(crate) const MIN_LARGE: Bytes = Bytes(256 << 20);

/// Measured speeds by device and by the shape of the weights.
#[derive(Debug)]
pub(crate) struct Speeds {
    path: Option<PathBuf>,
    known: Map<String, Value>,
    remeasure: bool,
    /// Values measured by this process.
    measured: Map<String, Value>,
}

impl Speeds {
    /// Loads the speeds cached in `folder`; with `remeasure`, they are not used. An unreadable file
    /// counts as empty.
    pub(crate) fn open(folder: Option<&Path>, remeasure: bool) -> Speeds {
        let path = folder.map(|folder| folder.join(FILE));
        let known = path.as_deref().map(saved_values).unwrap_or_default();
        Speeds { path, known, remeasure, measured: Map::new() }
    }

    /// The speed of a device with weights of `shape`, cached or measured. `threads` is 0 for
    /// devices without threads. Measuring allocates less than `most` bytes.
    pub(crate) fn speed(
        &mut self,
        backend: &Arc<dyn Backend>,
        threads: usize,
        shape: &Shape,
        most: Bytes,
    ) -> hal::Result<Speed> {
        let key = key(backend, threads, shape);
        if let Some(kept) = self.known.get(&key).filter(|_| !self.remeasure).and_then(read) {
            return Ok(kept);
        }
        // Use a separate ledger, because the memory used to measure is not part of a run.
        let device = Device::new(Arc::clone(backend), DeviceId(0), Bytes::MAX);
        let free = backend.memory().ok().and_then(|memory| memory.free);
        let available = free.unwrap_or(Bytes::MAX).min(most);
        let measured = speed(&device, shape, Some(available))?;
        let Speed { dense, sparse, hand_off, op, refill, prompt, upload } = measured;
        let [dense, sparse, prompt, upload] =
            [dense, sparse, prompt, upload].map(round_to_two_digits);
        let [hand_off, op, refill] = [hand_off, op, refill].map(round_to_two_digits);
        let figures = json!({ "bytes_per_second": dense, "row_bytes_per_second": sparse, "hand_off_seconds": hand_off, "op_seconds": op, "refill_seconds": refill, "prompt_bytes_per_second": prompt, "upload_bytes_per_second": upload });
        self.known.insert(key.clone(), figures.clone());
        self.measured.insert(key, figures);
        Ok(Speed { dense, sparse, hand_off, op, refill, prompt, upload })
    }

    /// The cached speed of a device; `None` if it was never measured. A model that no cache of a
    /// processor can hold has about the speed that [`measure_speed`] measures with another shape.
    pub(crate) fn known(
        &self,
        backend: &Arc<dyn Backend>,
        threads: usize,
        shape: &Shape,
    ) -> Option<Speed> {
        let of_shape = |shape: &Shape| read(self.known.get(&key(backend, threads, shape))?);
        let usual = || of_shape(&USUAL).filter(|_| shape.size >= MIN_LARGE);
        of_shape(shape).or_else(usual)
    }

    /// The measured or cached prefetch distance of the CPU with `threads` threads, in bytes; `None`
    /// if it cannot be measured.
    pub(crate) fn prefetch_distance(
        &mut self,
        backend: &Arc<dyn Backend>,
        threads: usize,
    ) -> Option<usize> {
        if let Some(kept) = self.known_prefetch_distance(backend, threads) {
            return Some(kept);
        }
        let key = prefetch_key(backend, threads);
        let free = backend.memory().ok().and_then(|memory| memory.free);
        let most = free.map_or(Bytes::MAX, |free| Bytes(free.0 / 4));
        let measured = PrefetchDistance::measure(threads, most)?;
        let figures = json!({ "prefetch_bytes": measured });
        self.known.insert(key.clone(), figures.clone());
        self.measured.insert(key, figures);
        Some(measured)
    }

    /// The cached prefetch distance; `None` if it must be measured.
    pub(crate) fn known_prefetch_distance(
        &self,
        backend: &Arc<dyn Backend>,
        threads: usize,
    ) -> Option<usize> {
        let kept = self.known.get(&prefetch_key(backend, threads)).filter(|_| !self.remeasure)?;
        usize::try_from(kept.get("prefetch_bytes")?.as_u64()?).ok()
    }

    /// The measured or cached [`DenseFrom`] of the CPU with `threads` threads and weights of
    /// `shape`.
    pub(crate) fn dense_from(
        &mut self,
        backend: &Arc<dyn Backend>,
        threads: usize,
        shape: &Shape,
    ) -> hal::Result<DenseFrom> {
        let info = backend.info();
        let Shape { format, n_embd, n_ff, .. } = shape;
        let weights = format!("{format} {n_embd}x{n_ff}, several tokens");
        let key = format!("{} | {} | {threads} | {weights}", info.name, info.described());
        if let Some(kept) = self.known.get(&key).filter(|_| !self.remeasure).and_then(read_shares) {
            return Ok(kept);
        }
        let device = Device::new(Arc::clone(backend), DeviceId(0), Bytes::MAX);
        let free = backend.memory().ok().and_then(|memory| memory.free);
        let shares = dense_from(&device, shape, DenseFrom::TOKENS, free)?.map(round_to_two_digits);
        let figures = json!({ "tokens": DenseFrom::TOKENS, "dense_from": shares });
        self.known.insert(key.clone(), figures.clone());
        self.measured.insert(key, figures);
        Ok(DenseFrom(shares.map(|share| share as f32)))
    }

    /// The speed of the disk with the file at `path`, cached or measured with reads of `file`;
    /// `None` if it cannot be measured.
    pub(crate) fn disk(&mut self, path: &Path, file: &dyn ReadAt) -> Option<DiskSpeed> {
        let key = disk_name(path).map(|name| format!("{DISK}{name}"));
        let kept = key.as_ref().and_then(|key| self.known.get(key)).filter(|_| !self.remeasure);
        if let Some(kept) = kept.and_then(read_disk) {
            return Some(kept);
        }
        let DiskSpeed { bandwidth, latency, small_reads, depth } = store::measure(file)?;
        let [bandwidth, latency, small_reads] =
            [bandwidth, latency, small_reads].map(round_to_two_digits);
        if let Some(key) = key {
            let figures = json!({
                "bytes_per_second": bandwidth,
                "latency_seconds": latency,
                "small_reads_per_second": small_reads,
                "depth": depth,
            });
            self.known.insert(key.clone(), figures.clone());
            self.measured.insert(key, figures);
        }
        Some(DiskSpeed { bandwidth, latency, small_reads, depth })
    }

    /// The cached result of a self-test.
    pub(crate) fn verdict(&self, key: &str) -> Option<Verdict> {
        read_verdict(self.known.get(key).filter(|_| !self.remeasure)?)
    }

    /// Caches the result of a self-test.
    pub(crate) fn keep_verdict(&mut self, key: String, verdict: &Verdict) {
        self.measured.insert(key, verdict_value(verdict));
    }

    /// Saves new values. If that fails, sends a notice, and the next start measures them again.
    pub(crate) fn save(&self, observer: &dyn Observer) {
        let Some(path) = self.path.as_ref().filter(|_| !self.measured.is_empty()) else { return };
        let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        // Keep values that another process saved in the meantime. Without the lock they may get lost,
        // and that process measures them again.
        let _held = lock(path, &AtomicBool::new(false));
        let mut all = saved_values(path);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        for (key, value) in &self.measured {
            let mut value = value.clone();
            value[MEASURED] = now.into();
            all.insert(key.clone(), value);
        }
        drop_oldest(&mut all);
        let text = format!("{:#}\n", Value::Object(all));
        let write = || {
            let mut file = PartFile::create(path)?;
            file.write_all(text.as_bytes())
                .map_err(|reason| gguf::Problem::Io { action: "write", reason })?;
            file.commit()
        };
        let written = folder
            .map_err(|e| e.to_string())
            .and_then(|()| write().map_err(|problem| problem.to_string()));
        if let Err(reason) = written {
            let path = path.clone();
            observer.notice(&Notice::SpeedsNotKept { path, reason });
        }
    }
}

/// The shape with which devices are measured for a model: its feed-forward blocks, in the format
/// with the most bytes.
pub(crate) fn shape_of(model: &Model, computation: &Computation) -> Shape {
    let mut sizes: BTreeMap<&'static str, (u64, Format)> = BTreeMap::new();
    for (_, ffn) in model.blocks() {
        for (_, rows) in ffn.matrices() {
            let desc = rows.desc();
            let entry = sizes.entry(desc.format.name()).or_insert((0, desc.format));
            entry.0 += desc.bytes().unwrap_or_default().0;
        }
    }
    let formats = sizes.into_values().filter(|(_, f)| f.row_bytes(model.hyper.n_embd).is_some());
    let format = formats.max_by_key(|(bytes, _)| *bytes).map_or(Format::F16, |(_, format)| format);
    let predicts = model.blocks().any(|(_, ffn)| ffn.predictor.is_some());
    Shape {
        format,
        n_embd: model.hyper.n_embd,
        n_ff: model.max_n_ff(),
        size: Bytes(model.file.size_bytes()),
        listed: predicts && computation.sparsity == Sparsity::Predicted,
        skips: model.is_exactly_sparse() && computation.sparsity != Sparsity::Off,
    }
}

/// Where the speed of a device with weights of `shape` is cached.
fn key(backend: &Arc<dyn Backend>, threads: usize, shape: &Shape) -> String {
    let info = backend.info();
    let Shape { format, n_embd, n_ff, size, listed, skips } = shape;
    let listed = if *listed { ", listed" } else { "" };
    let dense = if *skips { "" } else { ", all used" };
    let weights = format!("{format} {n_embd}x{n_ff} of {size}{listed}{dense}");
    format!("{} | {} | {threads} | {weights}", info.name, info.described())
}

/// Measures the prefetch distance of a CPU with `threads` threads, and caches it in `folder`. `None`
/// if the system refuses memory or threads.
#[must_use]
pub fn measure_prefetch(
    backend: &Arc<dyn Backend>,
    threads: usize,
    folder: Option<&Path>,
    observer: &dyn Observer,
) -> Option<usize> {
    let mut speeds = Speeds::open(folder, true);
    let distance = speeds.prefetch_distance(backend, threads);
    speeds.save(observer);
    distance
}

/// Measures the speed of a device with the weights of a model of seven billion weights in Q4_0, and
/// caches it in `folder`. `threads` is 0 for a device without threads.
///
/// # Errors
/// Errors of the device.
pub fn measure_speed(
    backend: &Arc<dyn Backend>,
    threads: usize,
    folder: Option<&Path>,
    observer: &dyn Observer,
) -> hal::Result<Speed> {
    let mut speeds = Speeds::open(folder, true);
    let speed = speeds.speed(backend, threads, &USUAL, Bytes::MAX)?;
    speeds.save(observer);
    Ok(speed)
}

/// The key of the prefetch distance in the file.
fn prefetch_key(backend: &Arc<dyn Backend>, threads: usize) -> String {
    let info = backend.info();
    format!("{} | {} | {threads} | prefetch to L1 or L2", info.name, info.described())
}

/// Removes the values that were measured first, until [`MAX_VALUES`] are left.
fn drop_oldest(all: &mut Map<String, Value>) {
    let time = |value: &Value| value.get(MEASURED).and_then(Value::as_u64).unwrap_or(0);
    let mut times: Vec<(u64, String)> =
        all.iter().map(|(key, value)| (time(value), key.clone())).collect();
    times.sort_unstable();
    for (_, key) in times.iter().take(all.len().saturating_sub(MAX_VALUES)) {
        all.remove(key);
    }
}

/// The disks whose speed is cached in `folder`, by name.
#[must_use]
pub fn known_disks(folder: Option<&Path>) -> Vec<(String, DiskSpeed)> {
    let speeds = Speeds::open(folder, false);
    let disk = |(key, value): (&String, &Value)| {
        Some((key.strip_prefix(DISK)?.to_owned(), read_disk(value)?))
    };
    speeds.known.iter().filter_map(disk).collect()
}

/// Parses the cached speed of a disk; `None` if it is invalid.
fn read_disk(value: &Value) -> Option<DiskSpeed> {
    let number = |name: &str| {
        let number = value.get(name)?.as_f64().filter(|x| x.is_finite() && *x > 0.0);
        number.map(round_to_two_digits)
    };
    let depth = value.get("depth")?.as_u64().filter(|depth| (1..=MAX_DEPTH).contains(depth))?;
    let (bandwidth, latency) = (number("bytes_per_second")?, number("latency_seconds")?);
    let small_reads = number("small_reads_per_second")?;
    Some(DiskSpeed { bandwidth, latency, small_reads, depth: depth as usize })
}

/// The values in the file; empty if the file cannot be read.
fn saved_values(path: &Path) -> Map<String, Value> {
    let mut text = String::new();
    let file = own_file::open_own(path);
    // A text that is cut off is not valid.
    let read = file.and_then(|file| file.take(MAX_FILE).read_to_string(&mut text));
    read.ok().and_then(|_| serde_json::from_str(&text).ok()).unwrap_or_default()
}

/// Parses a cached [`DenseFrom`]; `None` if it is invalid.
fn read_shares(value: &Value) -> Option<DenseFrom> {
    let shares = value.get("dense_from")?.as_array()?;
    let shares = shares.iter().map(|share| share.as_f64().filter(|share| *share >= 0.0));
    let shares: Vec<f32> = shares.map(|share| Some(share? as f32)).collect::<Option<_>>()?;
    Some(DenseFrom(shares.try_into().ok()?))
}

/// Parses a cached speed; `None` if it is invalid.
fn read(value: &Value) -> Option<Speed> {
    let number = |name: &str| {
        let number = value.get(name)?.as_f64().filter(|x| x.is_finite() && *x >= 0.0);
        // JSON does not preserve the last bit, so round again.
        number.map(round_to_two_digits)
    };
    let (dense, sparse) = (number("bytes_per_second")?, number("row_bytes_per_second")?);
    let (hand_off, op) = (number("hand_off_seconds")?, number("op_seconds")?);
    let refill = number("refill_seconds")?;
    let (prompt, upload) = (number("prompt_bytes_per_second")?, number("upload_bytes_per_second")?);
    let speed = Speed { dense, sparse, hand_off, op, refill, prompt, upload };
    (dense > 0.0 && sparse > 0.0).then_some(speed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notice::SilentObserver;

    #[test]
    #[cfg(unix)]
    fn speeds_of_another_user_are_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        std::fs::write(&path, r#"{"a": 1}"#).unwrap();
        assert_eq!(saved_values(&path).len(), 1);
        match std::os::unix::fs::chown(&path, Some(54_321), None) {
            Ok(()) => assert!(saved_values(&path).is_empty()),
            Err(error) => println!("skipped: cannot give a file away: {error}"),
        }
    }

    #[test]
    fn speeds_are_cached_and_invalid_files_are_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let backend = crate::devices::cpu_backend(crate::devices::CpuOptions {
            threads: Some(1),
            ..crate::devices::CpuOptions::default()
        });
        let mut speeds = Speeds::open(Some(folder.path()), false);
        let shape = Shape { n_embd: 512, size: Bytes(4 << 20), ..Shape::of_7b_model(Format::F16) };
        let measured = speeds.speed(&backend, 1, &shape, Bytes::MAX).unwrap();
        speeds.save(&SilentObserver);
        let mut again = Speeds::open(Some(folder.path()), false);
        assert_eq!(again.speed(&backend, 1, &shape, Bytes::MAX).unwrap(), measured);
        assert!(again.measured.is_empty());
        assert_eq!(again.known(&backend, 1, &shape), Some(measured));
        assert_eq!(again.known(&backend, 2, &shape), None, "other threads");
        let mut large = Speeds::open(None, false);
        large.known = [(key(&backend, 1, &USUAL), again.known.values().next().unwrap().clone())]
            .into_iter()
            .collect();
        assert_eq!(large.known(&backend, 1, &shape), None, "a cache may hold the model");
        let size = MIN_LARGE;
        assert_eq!(large.known(&backend, 1, &Shape { size, ..shape }), Some(measured));
        // If two processes measure at the same time, the file keeps the values of both.
        let others = [256, 320].map(|n_embd| Shape { n_embd, ..shape });
        let mut both = [(); 2].map(|()| Speeds::open(Some(folder.path()), false));
        for (speeds, shape) in both.iter_mut().zip(&others) {
            speeds.speed(&backend, 1, shape, Bytes::MAX).unwrap();
        }
        both.iter().for_each(|speeds| speeds.save(&SilentObserver));
        assert_eq!(Speeds::open(Some(folder.path()), false).known.len(), 3);
        for text in ["", "{", "[]", "{\"a\": 1}"] {
            std::fs::write(folder.path().join(FILE), text).unwrap();
            assert!(
                Speeds::open(Some(folder.path()), false).known.values().all(|v| read(v).is_none())
            );
        }
        let kept = |dense: f64| json!({ "bytes_per_second": dense, "row_bytes_per_second": 1.0, "hand_off_seconds": 0.0, "op_seconds": 0.0, "refill_seconds": 0.0, "prompt_bytes_per_second": 2.0, "upload_bytes_per_second": 3.0 });
        assert_eq!(read(&kept(4.0)).map(|speed| speed.upload), Some(3.0));
        assert_eq!(read(&kept(-1.0)), None);
        let shares = [0.5, 0.75, 1.0, 2.0];
        let kept = json!({ "dense_from": shares });
        assert_eq!(read_shares(&kept), Some(DenseFrom(shares.map(|share| share as f32))));
        for wrong in
            [json!({ "dense_from": [0.5] }), json!({ "dense_from": [0.5, -1.0, 1.0, 2.0] })]
        {
            assert_eq!(read_shares(&wrong), None);
        }
    }

    /// A disk of which reads are counted.
    #[derive(Debug, Default)]
    struct CountedDisk(std::sync::atomic::AtomicUsize);

    impl ReadAt for CountedDisk {
        fn name(&self) -> String {
            "disk".to_owned()
        }

        fn size(&self) -> u64 {
            64 << 20
        }

        fn read_at(&self, out: &mut [u8], _offset: u64) -> std::io::Result<usize> {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Ok(out.len())
        }

        fn is_unchanged(&self) -> bool {
            true
        }
    }

    #[test]
    fn a_disk_is_measured_once_and_again_on_request() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        std::fs::write(&path, "x").unwrap();
        let measure = |remeasure| {
            let disk = CountedDisk::default();
            let mut speeds = Speeds::open(Some(folder.path()), remeasure);
            let speed = speeds.disk(&path, &disk).unwrap();
            speeds.save(&SilentObserver);
            (speed, disk.0.into_inner() > 0)
        };
        let (first, read) = measure(false);
        assert!(read && first.bandwidth > 0.0);
        if disk_name(&path).is_some() {
            assert_eq!(measure(false), (first, false));
            assert_eq!(known_disks(Some(folder.path())), [(disk_name(&path).unwrap(), first)]);
        }
        assert!(measure(true).1);
        for wrong in [
            json!({}),
            json!({ "bytes_per_second": 1.0, "latency_seconds": 1.0, "small_reads_per_second": 1.0, "depth": 0 }),
        ] {
            assert_eq!(read_disk(&wrong), None);
        }
    }

    #[test]
    fn the_file_keeps_the_values_that_were_measured_last() {
        let folder = tempfile::tempdir().unwrap();
        let old =
            (0..MAX_VALUES + 50).map(|n| (format!("{n:04}"), json!({ "n": n, MEASURED: n + 1 })));
        let old: Map<String, Value> = old.chain([("undated".to_owned(), json!({}))]).collect();
        let path = folder.path().join(FILE);
        std::fs::write(&path, Value::Object(old).to_string()).unwrap();
        let mut speeds = Speeds::open(Some(folder.path()), false);
        speeds.measured.insert("new".to_owned(), json!({ "n": 1 }));
        speeds.save(&SilentObserver);
        let kept = Speeds::open(Some(folder.path()), false).known;
        assert_eq!(kept.len(), MAX_VALUES);
        assert!(kept.contains_key("new") && !kept.contains_key("undated"));
        assert!(
            !kept.contains_key("0000") && kept.contains_key(&format!("{:04}", MAX_VALUES + 49))
        );
    }
}
