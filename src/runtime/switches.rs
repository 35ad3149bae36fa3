//! Switches of devices: for drivers that do something wrong which no check finds.

use std::fmt;
use std::str::FromStr;

/// Ways of using a device that can be switched; `None` leaves the choice to what is measured and
/// checked when the device is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// CUDA and HIP: whether steps run as graphs.
    pub graphs: Option<bool>,
    /// CUDA and HIP: whether the device itself waits for the CPU's part of a layer, by flags in
    /// shared memory; otherwise a submission ends there.
    pub flags: Option<bool>,
    /// CUDA and HIP: `Some(false)` uses no matrix instructions (tensor cores, WMMA, MFMA).
    pub mma: Option<bool>,
    /// CUDA: `Some(false)` does not bring the next weight into the L2 cache while a short kernel runs.
    pub prefetch: Option<bool>,
    /// Vulkan, Metal and DX12: `Some(false)` exchanges values between lanes through workgroup
    /// memory.
    pub subgroups: Option<bool>,
    /// All: `Some(false)` uses the kernels of a model without testing them.
    pub self_test: Option<bool>,
}

/// Names of the switches, in the order of help texts.
pub const SWITCHES: [&str; 6] = ["graphs", "flags", "mma", "prefetch", "subgroups", "self-test"];

impl Switches {
    fn get_mut(&mut self, name: &str) -> Option<&mut Option<bool>> {
        Some(match name {
            "graphs" => &mut self.graphs,
            "flags" => &mut self.flags,
            "mma" => &mut self.mma,
            "prefetch" => &mut self.prefetch,
            "subgroups" => &mut self.subgroups,
            "self-test" => &mut self.self_test,
            _ => return None,
        })
    }

    /// Sets what `other` sets.
    fn add(&mut self, other: Switches) {
        self.graphs = other.graphs.or(self.graphs);
        self.flags = other.flags.or(self.flags);
        self.mma = other.mma.or(self.mma);
        self.prefetch = other.prefetch.or(self.prefetch);
        self.subgroups = other.subgroups.or(self.subgroups);
        self.self_test = other.self_test.or(self.self_test);
    }
}

/// The name that stands for every device.
const ALL: &str = "all";

/// The switches of all devices, as text: `graphs=off` or `all:graphs=off` for every device, and
/// `CUDA0:graphs=off,flags=off,Vulkan0:subgroups=off` for some. A name counts until the next name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceSwitches {
    /// Switches, with the device that they are for; `None` for every device.
    entries: Vec<(Option<String>, Switches)>,
}

impl DeviceSwitches {
    /// The switches of the device with this name; later entries count more.
    #[must_use]
    pub fn of(&self, device: &str) -> Switches {
        let mut switches = Switches::default();
        for (name, entry) in &self.entries {
            if name.as_ref().is_none_or(|name| name.eq_ignore_ascii_case(device)) {
                switches.add(*entry);
            }
        }
        switches
    }

    /// The names of the devices that have switches.
    pub(crate) fn devices(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().filter_map(|(name, _)| name.as_deref())
    }

    /// These switches, then those of `more`.
    #[must_use]
    pub fn and(mut self, more: &DeviceSwitches) -> DeviceSwitches {
        self.entries.extend(more.entries.iter().cloned());
        self
    }
}

impl fmt::Display for DeviceSwitches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut comma = "";
        for (device, switches) in &self.entries {
            let mut switches = *switches;
            for name in SWITCHES {
                let Some(Some(state)) = switches.get_mut(name) else { continue };
                let device = device.as_deref().unwrap_or(ALL);
                write!(f, "{comma}{device}:{name}={}", if *state { "on" } else { "off" })?;
                comma = ",";
            }
        }
        Ok(())
    }
}

impl FromStr for DeviceSwitches {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceSwitches, String> {
        let mut all = DeviceSwitches::default();
        let mut device: Option<String> = None;
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (name, item) = item.split_once(':').map_or((None, item), |(a, b)| (Some(a), b));
            if let Some(name) = name {
                device = Some(name.trim().to_owned()).filter(|name| name != ALL);
            }
            let mut switches = Switches::default();
            let (switch, state) = item.split_once('=').unwrap_or((item, ""));
            let Some(entry) = switches.get_mut(switch.trim()) else {
                let known = SWITCHES.join(", ");
                return Err(format!("'{switch}' is not a switch of a device; there are {known}"));
            };
            *entry = match state.trim() {
                "on" => Some(true),
                "off" => Some(false),
                _ => return Err(format!("{switch} can be on or off: {switch}=off")),
            };
            all.entries.push((device.clone(), switches));
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_are_for_all_devices_or_for_the_one_named_before() {
        let parse = |text: &str| text.parse::<DeviceSwitches>();
        let all = parse("graphs=on,CUDA0:graphs=off, flags=off,vulkan0:subgroups=off").unwrap();
        let none = Switches::default();
        let cuda = Switches { graphs: Some(false), flags: Some(false), ..none };
        assert_eq!(all.of("CUDA0"), cuda);
        let vulkan = Switches { graphs: Some(true), subgroups: Some(false), ..none };
        assert_eq!(all.of("Vulkan0"), vulkan);
        let text = "all:graphs=on,CUDA0:graphs=off,CUDA0:flags=off,vulkan0:subgroups=off";
        assert_eq!(all.to_string(), text);
        assert_eq!(parse(text), Ok(all.clone()));
        assert_eq!(all.of("HIP1"), Switches { graphs: Some(true), ..none });
        let more = parse("mma=off").unwrap();
        assert_eq!(all.and(&more).of("CUDA0"), Switches { mma: Some(false), ..cuda });
        assert_eq!(parse("").unwrap().of("CUDA0"), none);
        for wrong in ["graph=off", "graphs", "graphs=maybe", "CUDA0:", "CUDA0=graphs:off"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
