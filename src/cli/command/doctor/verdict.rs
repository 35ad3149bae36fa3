//! The end of the report: how fast a common model would be here, and what would help most.

use super::checks::Check;
use super::{DeviceReport, FORMAT};
use crate::placement::{Forecast, Speed, Task, plan};
use hal::Bytes;
use serde_json::{Value, json};

/// The machine's memory or a device is worth improving if the speed grows by this factor.
const WORTHWHILE: f64 = 1.2;

/// What the measured speeds mean for a model of seven billion weights.
pub(super) struct Verdict {
    forecast: Forecast,
    /// Names of the devices that the model would use, the CPU first.
    devices: Vec<String>,
    /// What would help most.
    next: String,
}

impl Verdict {
    /// The verdict for the measured devices, the CPU first; `None` if the CPU was not measured.
    pub(super) fn new(reports: &[DeviceReport], checks: &[Check]) -> Option<Verdict> {
        let measured = reports.iter().filter(|report| report.is_default || report.read.is_some());
        let measured = measured.filter_map(|report| Some((report, report.speed.as_ref().ok()?)));
        let (used, facts): (Vec<_>, Vec<(Speed, Bytes)>) = measured
            .map(|(report, speed)| {
                let memory = report.memory.free.or(report.memory.total).unwrap_or(Bytes::MAX);
                (report, (*speed, memory))
            })
            .unzip();
        used.first().filter(|cpu| cpu.read.is_some())?;
        let forecast = plan(&Task::of_7b_model(FORMAT, &facts)?);
        let layers = forecast.placement.layers.iter();
        let homes: Vec<usize> = layers.map(|layer| layer.home).collect();
        let in_use = |(number, _): &(usize, &&DeviceReport)| homes.contains(number);
        let devices = used.iter().enumerate().filter(in_use);
        let devices = devices.map(|(_, report)| report.name.clone()).collect();
        let next = next(&used, &facts, &forecast, checks);
        Some(Verdict { forecast, devices, next })
    }

    /// The lines: label and text.
    pub(super) fn lines(&self) -> [(&'static str, String); 2] {
        let rate = shown(self.forecast.rate());
        let devices: Vec<&str> = self.devices.iter().map(String::as_str).collect();
        let devices = devices.join(" and ").replace("CPU", "the CPU");
        let prompt = self.forecast.prompt_rate().filter(|rate| rate.is_finite());
        let prompt = prompt.map_or(String::new(), |rate| {
            format!(" and read prompts at about {} tokens/s", shown(rate))
        });
        let name = FORMAT.name();
        let verdict =
            format!("a 7B model at {name} would give about {rate} tokens/s on {devices}{prompt}");
        [("verdict: ", verdict), ("improve: ", self.next.clone())]
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "model": format!("7B {}", FORMAT.name()),
            "tokens_per_second": self.forecast.rate(),
            "prompt_tokens_per_second": self.forecast.prompt_rate(),
            "devices": self.devices,
            "next": self.next,
        })
    }
}

/// A rate with two or more digits.
fn shown(rate: f64) -> String {
    if rate < 10.0 { format!("{rate:.1}") } else { format!("{rate:.0}") }
}

/// What would help most: the first finding in the order of what it costs.
fn next(
    used: &[&DeviceReport],
    facts: &[(Speed, Bytes)],
    forecast: &Forecast,
    checks: &[Check],
) -> String {
    let (cpu, (cpu_speed, memory)) = (used[0], facts[0]);
    let size = Task::size_of_7b_model(FORMAT);
    let on_cpu = forecast.placement.layers.iter().any(|layer| layer.home == 0);
    if on_cpu && memory < size {
        return format!(
            "free memory: such a model with a context of 4096 tokens needs {size}, and {memory} are free"
        );
    }
    if let Some(check) = checks.iter().find(|check| check.is_slow) {
        return check.text.clone();
    }
    let read = cpu.read.unwrap_or(0.0);
    if on_cpu && cpu_speed.dense < 0.5 * read * 1e9 {
        return format!(
            "more threads (-t): the CPU computes {:.1} GB/s of weights, but its memory delivers {read:.1} GB/s",
            cpu_speed.dense / 1e9
        );
    }
    if facts.len() == 1 {
        return format!(
            "a GPU, because decode reads all weights for each token and this memory delivers {read:.1} GB/s; a model that skips neurons reads fewer (docs/models.md)"
        );
    }
    let unlimited: Vec<_> = facts.iter().map(|(speed, _)| (*speed, Bytes::MAX)).collect();
    let best = Task::of_7b_model(FORMAT, &unlimited).map_or(0.0, |task| plan(&task).rate());
    if best > WORTHWHILE * forecast.rate() {
        return format!(
            "more device memory: with {size} free on a device, such a model would give about {} tokens/s; smaller ones fit now",
            shown(best)
        );
    }
    "nothing: such a model is limited by the bandwidth of the device's memory".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hal::MemoryReport;

    fn report(name: &str, read: Option<f64>, dense: f64, free: u64) -> DeviceReport {
        let speed = Speed { dense, sparse: dense, prompt: dense, ..Speed::default() };
        DeviceReport {
            name: name.to_owned(),
            description: String::new(),
            memory: MemoryReport { total: Some(Bytes(free)), free: Some(Bytes(free)) },
            read,
            speed: Ok(speed),
            is_default: true,
            features: Vec::new(),
            remarks: Vec::new(),
            self_test: None,
        }
    }

    fn lines(reports: &[DeviceReport]) -> String {
        let lines = Verdict::new(reports, &[]).unwrap().lines();
        lines.map(|(label, text)| label.to_owned() + &text).join("\n")
    }

    #[test]
    fn the_advice_follows_the_weakest_part() {
        const GIB: u64 = 1 << 30;
        let cpu = |dense, free| report("CPU", Some(40.0), dense, free);
        let text = lines(&[cpu(38e9, 16 * GIB)]);
        assert!(text.contains("about 9.") && text.contains("tokens/s on the CPU"), "{text}");
        assert!(text.contains("improve: a GPU"), "{text}");
        assert!(lines(&[cpu(38e9, 2 * GIB)]).contains("improve: free memory"));
        assert!(lines(&[cpu(10e9, 16 * GIB)]).contains("improve: more threads"));
        let card = |free| report("CUDA0", None, 400e9, free);
        let text = lines(&[cpu(38e9, 16 * GIB), card(3 * GIB)]);
        assert!(text.contains("improve: more device memory"), "{text}");
        let text = lines(&[cpu(38e9, 16 * GIB), card(24 * GIB)]);
        assert!(text.contains("on CUDA0") && text.contains("improve: nothing"), "{text}");
        let slow = [Check { is_ok: false, text: "huge pages".to_owned(), is_slow: true }];
        let verdict = Verdict::new(&[cpu(38e9, 16 * GIB)], &slow).unwrap();
        assert!(verdict.lines()[1].1.contains("huge pages"));
        let mut failed = cpu(38e9, 16 * GIB);
        failed.speed = Err("no".to_owned());
        assert!(Verdict::new(&[failed], &[]).is_none());
    }
}
