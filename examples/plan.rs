//! Shows how many layers of a model a GPU with a given amount of memory would hold, and how fast
//! decode would be. The example does not load the weights.
//!
//!     cargo run --release -p thermocline-runtime --example plan -- [GIB] [MODEL.gguf]

use std::error::Error;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use thermocline_runtime::{AssumedDevice, Options, Runtime, SilentObserver, forecast};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let gib = args.next().map_or(Ok(8.0), |text| text.parse())?;
    run(gib, args.next().map(PathBuf::from), &mut io::stdout())
}

/// Plans for a GPU with `gib` GiB of memory. Without a `path`, plans the built-in model.
pub(crate) fn run(
    gib: f64,
    path: Option<PathBuf>,
    out: &mut impl Write,
) -> Result<(), Box<dyn Error>> {
    let memory = Some((gib * 1024f64.powi(3)) as u64);
    let card = AssumedDevice { name: Some("card".to_owned()), memory, ..AssumedDevice::default() };
    let runtime = Runtime::assume(Options::default(), &[card], Arc::new(SilentObserver))?;
    let model = runtime.open(path.as_deref())?.model;
    let plan = forecast(&runtime, &model)?;
    let layers = &plan.placement.layers;
    let on_card = layers.iter().filter(|layer| layer.home == 1).count();
    let n_split = plan.placement.n_split();
    writeln!(out, "{on_card} of {} layers on the card, {n_split} of them split", layers.len())?;
    writeln!(out, "{} of device memory, {:.1} tokens/s", plan.devices[1].total(), plan.rate())?;
    Ok(())
}
