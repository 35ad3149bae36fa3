//! The live view with a device.

use std::time::Duration;

use hal::Bytes;
use runtime::{devices, embedded};
use scheduler::SchedulerOptions;
use text::tokenizer::{Tokenizer, Vocab};
use thermocline::engine::{Engine, EngineOptions};
use thermocline::model::{Model, ModelOptions};

use super::{TestServer, config};
use crate::placement_is_invisible::{ignore_notices, sim_device};

const BUDGET: u64 = 64 << 20;
const RESERVE: u64 = 5 << 20;

#[test]
fn budgets_include_the_memory_of_the_driver() {
    let file = embedded::file().unwrap();
    let vocab = Vocab::from_metadata(file.metadata()).unwrap();
    let model = Model::from_file(file, &ModelOptions::default()).unwrap();
    let (_, device) = sim_device(1, Bytes(BUDGET), Duration::ZERO..Duration::from_micros(1), 1);
    let both = vec![devices::cpu(Some(1)), device];
    let options = EngineOptions { n_ctx: 256, ..EngineOptions::default() };
    let engine = Engine::load(model.into(), both, options, None, ignore_notices(), &|_, _| {});
    let reserves = [Bytes(0), Bytes(RESERVE)];
    let tokenizer = Tokenizer::new(vocab).unwrap();
    let scheduler = SchedulerOptions::default();
    let server =
        TestServer::from_engine(engine.unwrap(), tokenizer, config(), scheduler, &reserves);
    let view = server.client.get("/thermocline").json();
    assert_eq!(view["devices"][1]["budget_bytes"], BUDGET + RESERVE);
    assert_eq!(view["devices"][1]["driver_bytes"], RESERVE);
    assert_eq!(view["plans"]["current_bytes"], BUDGET + RESERVE);
    let budgets = view["plans"]["budgets"].as_array().unwrap();
    let n_layers = view["layers"].as_array().unwrap().len();
    let (first, last) = (&budgets[0], budgets.last().unwrap());
    assert_eq!((&first["budget_bytes"], &first["layers_on_devices"]), (&0.into(), &0.into()));
    // The largest budget holds the whole model and the driver.
    assert_eq!(last["layers_on_devices"], n_layers);
    let needed: u64 = last["budget_bytes"].as_u64().unwrap();
    let weights = view["plan"]["device_bytes"][1].as_u64().unwrap();
    assert!(needed >= weights + RESERVE, "{needed} {weights}");
}
