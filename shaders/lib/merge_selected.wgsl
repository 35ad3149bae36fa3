fn listed(i: u32) -> u32 { return extras[p.at_extras + i]; }
