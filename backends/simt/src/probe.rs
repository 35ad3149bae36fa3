//! Measures how to submit work fastest, when a device is opened: separate launches or a graph, and
//! hand-offs by flags or by ending the submission.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hal::Result;

use crate::buffer::{Memory, Span};
use crate::card::Kernels;
use crate::driver::{Arg, Driver, Geometry};
use crate::pinned::Pinned;
use crate::program::LoadedLaunch;
use crate::stream::Stream;
use crate::units::Unit;

/// Launches per measurement, about as many as a few layers have.
const LAUNCHES: usize = 64;
/// Measurements of each alternative after a warm-up; the shortest time is used.
const TRIES: usize = 3;
/// Kernel launches in the graph whose results are checked.
const CHECKED_LAUNCHES: usize = 512;
/// Kernel launches in the graph of [`launch_returns`], about as many as a model with many layers has per step.
const MAX_LAUNCHES: usize = 4096;
/// Launches of the whole checked graph.
const ROUNDS: u32 = 8;
/// Time limit for the device to see the host's flag, and for the host to see the reply.
const ECHO_LIMIT: Duration = Duration::from_millis(500);
/// A graph is used up to this multiple of the time of separate launches: a measurement of a few
/// hundred microseconds varies, graphs leave the host free, and hand-offs by flags need them.
const GRAPH_TOLERANCE: f64 = 1.25;
/// How long the device waits for an answer before it assumes that the host is dead.
const WAIT_LIMIT: Duration = Duration::from_secs(60);
/// The same if the system ends kernels that run for seconds: on a card that drives a display, on
/// Windows, and in WSL2. Longer waits end in [`hal::Error::TimedOut`], after which the device does
/// not wait any more.
const SHORT_WAIT_LIMIT: Duration = Duration::from_millis(300);

/// Remarks about devices that need a slower submission mode.
const GRAPHS_DIFFER: &str = "its graphs do not run as captured, so kernels are launched separately";
const GRAPHS_SLOW: &str = "its graphs are slower than separate launches, which are used instead";
const CANNOT_WAIT: &str = "the device cannot wait for the host, so submissions end at hand-offs";
const LAUNCH_BLOCKS: &str =
    "starting a graph waits for its kernels, so submissions end at hand-offs";

/// Overrides of what is measured and checked when a device is opened: for tests, and for drivers
/// that do something wrong which no check finds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Whether programs run as graphs.
    pub graphs: Option<bool>,
    /// Whether hand-offs use flags in pinned memory, inside one submission.
    pub flags: Option<bool>,
    /// `Some(false)`: no matrix instructions, even if they pass the check.
    pub matrix_units: Option<bool>,
    /// `Some(false)`: short launches do not bring the next weight into the L2 cache.
    pub prefetch: Option<bool>,
    /// How long the device waits for an answer.
    pub wait_limit: Option<Duration>,
}

/// How work is submitted to a device.
#[derive(Clone, Copy, Debug)]
pub struct SubmissionMode {
    /// Whether programs run as graphs.
    pub graphs: bool,
    /// Whether the device itself waits for answers; otherwise a submission ends before each answer.
    pub flags: bool,
    /// The time limit of such a wait.
    pub wait_limit: Duration,
    /// Time per launch outside a graph.
    pub launch: Duration,
    /// Time per launch in a graph; `None` if graphs are not supported or fail.
    pub in_graph: Option<Duration>,
    /// Time from the host's write of a flag to the device's reply; `None` if no reply came in time.
    pub echo: Option<Duration>,
    /// Why this device needs a slower mode than others: [`hal::DeviceInfo::remark`].
    pub remark: Option<&'static str>,
}

impl SubmissionMode {
    /// # Errors
    /// A lost device, or a driver that cannot launch kernels.
    pub(crate) fn measure<D: Driver>(
        driver: &Arc<D>,
        kernels: &Kernels<D>,
        options: Options,
    ) -> Result<SubmissionMode> {
        let stream = Stream::new(driver)?;
        let unit = Unit::plain("probe");
        let load = |kernel: &str, args: Vec<Arg>| -> Result<LoadedLaunch<D>> {
            let function = kernels.function(&unit, kernel)?;
            Ok(LoadedLaunch {
                function,
                geometry: Geometry { grid: [1; 3], block: 64, shared: 0 },
                args,
            })
        };
        let nothing = load("probe_nothing", vec![Arg::Ptr(0)])?;
        let launch_all = || (0..LAUNCHES).try_for_each(|_| stream.launch(&nothing));
        let launch = fastest(&stream, &launch_all)?;
        // A driver that fails to capture this work counts as one without graphs.
        let graph = stream.capture(launch_all).ok();
        let graph = graph.map(|graph| fastest(&stream, &|| stream.launch_graph(&graph)));
        let in_graph = graph.and_then(Result::ok);
        let mut block = Pinned::new(driver, "probe", 64)?;
        let memory = Memory::new(driver, "probe", 64)?;
        let [sum, word] = [memory.span().part(0, 4), memory.span().part(4, 4)];
        let count = load("probe_count", vec![Arg::Ptr(sum.at), Arg::Ptr(word.at)])?;
        let as_captured = if options.graphs.is_none() && in_graph.is_some() {
            runs_as_captured(&stream, &count, [sum, word], &mut block).unwrap_or(false)
        } else {
            true
        };
        let limit = Arg::U32(ECHO_LIMIT.as_millis() as u32);
        let echo_launch = load("probe_echo", vec![Arg::Ptr(block.device()), limit])?;
        let echo = fastest_echo(&stream, &block, &echo_launch)?;
        let wait_limit = if driver.facts().watchdog { SHORT_WAIT_LIMIT } else { WAIT_LIMIT };
        let are_fast = in_graph.is_none_or(|graph| graph <= launch.mul_f64(GRAPH_TOLERANCE));
        let graphs = in_graph.is_some() && are_fast && as_captured;
        let mut remark = match options.graphs {
            None if !as_captured => Some(GRAPHS_DIFFER),
            None if !are_fast => Some(GRAPHS_SLOW),
            Some(_) | None => None,
        };
        let graphs = options.graphs.unwrap_or(graphs);
        let flags = match options.flags {
            Some(flags) => flags,
            None if !graphs => false,
            None if echo.is_none() => {
                remark = Some(CANNOT_WAIT);
                false
            }
            None => {
                let launch_returns = launch_returns(&stream, &block, [&echo_launch, &nothing])?;
                remark = remark.or((!launch_returns).then_some(LAUNCH_BLOCKS));
                launch_returns
            }
        };
        Ok(SubmissionMode {
            graphs,
            flags,
            wait_limit: options.wait_limit.unwrap_or(wait_limit),
            launch: launch / LAUNCHES as u32,
            in_graph: in_graph.map(|time| time / LAUNCHES as u32),
            echo,
            remark,
        })
    }
}

/// The shortest time, of a warm-up and [`TRIES`] tries, until all work of `submit` is done.
fn fastest<D: Driver>(stream: &Stream<D>, submit: &dyn Fn() -> Result<()>) -> Result<Duration> {
    let mut fastest = Duration::MAX;
    for _ in 0..=TRIES {
        let began = Instant::now();
        submit()?;
        stream.finish()?;
        fastest = fastest.min(began.elapsed());
    }
    Ok(fastest)
}

/// Whether a graph of many launches sees data copied right before each launch of the graph, and
/// runs each kernel once and in order. Some versions of ROCm are reported to fail this check.
fn runs_as_captured<D: Driver>(
    stream: &Stream<D>,
    count: &LoadedLaunch<D>,
    [sum, word]: [Span; 2],
    block: &mut Pinned<D>,
) -> Result<bool> {
    let graph = stream.capture(|| (0..CHECKED_LAUNCHES).try_for_each(|_| stream.launch(count)))?;
    let words = |round: u32| 0x9e37_79b9_u32.wrapping_mul(round + 1);
    for round in 0..ROUNDS {
        // A separate word per round, since the loop below does not wait for the copies.
        block.word(round as usize).store(words(round), Ordering::Release);
    }
    stream.fill(sum, 0)?;
    for round in 0..ROUNDS {
        stream.copy_in(word, 0, block, 4 * round as usize, 4)?;
        stream.launch_graph(&graph)?;
        stream.copy_out(block, 4 * (ROUNDS + round) as usize, sum, 0, 4)?;
    }
    stream.finish()?;
    let mut expected = 0u32;
    Ok((0..ROUNDS).all(|round| {
        for _ in 0..CHECKED_LAUNCHES {
            expected = expected.wrapping_mul(3).wrapping_add(words(round));
        }
        block.word((ROUNDS + round) as usize).load(Ordering::Acquire) == expected
    }))
}

/// Whether launching a graph as long as a step returns while the graph's first kernel still waits.
/// Otherwise the launch blocks the thread that has to answer.
fn launch_returns<D: Driver>(
    stream: &Stream<D>,
    block: &Pinned<D>,
    [echo, nothing]: [&LoadedLaunch<D>; 2],
) -> Result<bool> {
    let graph = stream.capture(|| {
        stream.launch(echo)?;
        (0..MAX_LAUNCHES).try_for_each(|_| stream.launch(nothing))
    })?;
    // The first launch is not measured: it includes one-time work of the driver.
    block.word(0).store(1, Ordering::Release);
    stream.launch_graph(&graph)?;
    stream.finish()?;
    block.word(0).store(0, Ordering::Release);
    let began = Instant::now();
    stream.launch_graph(&graph)?;
    let launch_time = began.elapsed();
    block.word(0).store(1, Ordering::Release);
    stream.finish()?;
    // A launch that waits for the kernel takes as long as the kernel waits.
    Ok(launch_time < ECHO_LIMIT / 4)
}

/// The shortest time from setting a flag that a kernel polls to seeing the kernel's reply. `None`
/// if the host does not see a reply in time.
fn fastest_echo<D: Driver>(
    stream: &Stream<D>,
    block: &Pinned<D>,
    kernel: &LoadedLaunch<D>,
) -> Result<Option<Duration>> {
    let (request, reply) = (block.word(0), block.word(1));
    let mut fastest = Duration::MAX;
    for _ in 0..=TRIES {
        request.store(0, Ordering::Release);
        reply.store(0, Ordering::Release);
        stream.launch(kernel)?;
        // Gives the kernel time to start.
        std::thread::sleep(Duration::from_micros(200));
        let began = Instant::now();
        request.store(1, Ordering::Release);
        while reply.load(Ordering::Acquire) != 1 && began.elapsed() < ECHO_LIMIT {
            std::thread::yield_now();
        }
        let seen = reply.load(Ordering::Acquire) == 1;
        fastest = fastest.min(began.elapsed());
        stream.finish()?;
        if !seen {
            return Ok(None);
        }
    }
    Ok(Some(fastest))
}
