//! Platforms as images name them, and which of them this machine runs.

use serde::Deserialize;
use std::fmt;
use std::sync::OnceLock;

/// An operating system, an architecture and its variant, in the spelling of Go's `GOOS` and
/// `GOARCH`. An empty text means that the document names none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Raw")]
pub(crate) struct Platform {
    os: String,
    architecture: String,
    variant: String,
}

#[derive(Deserialize)]
struct Raw {
    os: Option<String>,
    architecture: Option<String>,
    variant: Option<String>,
}

impl From<Raw> for Platform {
    fn from(Raw { os, architecture, variant }: Raw) -> Self {
        Self::new(os.as_deref(), architecture.as_deref(), variant.as_deref())
    }
}

impl Platform {
    /// Builders spell architectures in several ways; containerd reads them all.
    pub(crate) fn new(os: Option<&str>, architecture: Option<&str>, variant: Option<&str>) -> Self {
        let lower = |text: Option<&str>| text.unwrap_or_default().trim().to_ascii_lowercase();
        let (os, architecture, variant) = (lower(os), lower(architecture), lower(variant));
        let (architecture, variant) = match (architecture.as_str(), variant.as_str()) {
            ("amd64" | "x86_64" | "x86-64", "v1" | "1") => ("amd64", ""),
            ("amd64" | "x86_64" | "x86-64", variant) => ("amd64", variant),
            ("arm64" | "aarch64", "8" | "v8" | "v8.0") => ("arm64", ""),
            ("arm64" | "aarch64", variant) => ("arm64", variant),
            ("i386" | "i486" | "i586" | "i686", variant) => ("386", variant),
            ("armhf", "") => ("arm", "v7"),
            ("armel", "") => ("arm", "v6"),
            other => other,
        };
        Self { os, architecture: architecture.to_owned(), variant: variant.to_owned() }
    }

    /// Whether the document names neither an operating system nor an architecture.
    pub(crate) fn is_unnamed(&self) -> bool {
        self.os.is_empty() && self.architecture.is_empty()
    }

    /// Whether it is the platform that BuildKit gives to attestations.
    pub(crate) fn is_unknown(&self) -> bool {
        self.os == "unknown" || self.architecture == "unknown"
    }

    /// Whether only the variant may keep this machine from running it.
    pub(crate) fn is_our_architecture(&self) -> bool {
        self.is_ours(Machine::this())
    }

    /// How well it suits this machine: a higher rank uses more of the processor's features. `None`:
    /// this machine does not run it. If the document names no operating system or architecture,
    /// this machine's is assumed.
    pub(crate) fn rank(&self) -> Option<u32> {
        self.rank_on(Machine::this())
    }

    fn is_ours(&self, machine: &Machine) -> bool {
        matches!(self.os.as_str(), "" | "linux")
            && (self.architecture.is_empty() || self.architecture == machine.architecture)
    }

    fn rank_on(&self, machine: &Machine) -> Option<u32> {
        let level = level(machine.architecture, &self.variant)?;
        (self.is_ours(machine) && machine.levels.contains(&level)).then_some(level)
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_any = |text: &str| if text.is_empty() { "?".to_owned() } else { text.chars().take(40).collect() };
        write!(f, "{}/{}", or_any(&self.os), or_any(&self.architecture))?;
        if self.variant.is_empty() { Ok(()) } else { write!(f, "/{}", or_any(&self.variant)) }
    }
}

/// The number by which variants of an architecture are ordered. `None`: an unknown variant, which
/// no machine is assumed to run.
fn level(architecture: &str, variant: &str) -> Option<u32> {
    let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number < 10);
    match architecture {
        "amd64" => {
            let variant = variant.strip_prefix("x86-64-").unwrap_or(variant);
            let digits = variant.strip_prefix('v').unwrap_or(variant);
            if digits.is_empty() { Some(1) } else { number(digits).filter(|level| (1..=4).contains(level)) }
        }
        "arm64" => {
            let digits = variant.strip_prefix('v').unwrap_or(variant);
            match digits.split_once('.').unwrap_or((digits, "0")) {
                ("", "0") => Some(80),
                (major @ ("8" | "9"), minor) => Some(number(major)? * 10 + number(minor)?),
                _ => None,
            }
        }
        _ => variant.is_empty().then_some(0),
    }
}

/// The processor of this machine.
struct Machine {
    /// The architecture in Go's spelling.
    architecture: &'static str,
    /// The numbers of the variants that it runs.
    levels: Vec<u32>,
}

impl Machine {
    fn this() -> &'static Self {
        static THIS: OnceLock<Machine> = OnceLock::new();
        THIS.get_or_init(|| match std::env::consts::ARCH {
            "x86_64" => Self { architecture: "amd64", levels: detected() },
            "aarch64" => Self { architecture: "arm64", levels: detected() },
            other => Self { architecture: other, levels: vec![0] },
        })
    }
}

/// This machine as an error names it.
pub(crate) fn this_machine(with_variant: bool) -> String {
    let Machine { architecture, levels } = Machine::this();
    match (*architecture, levels.last()) {
        ("amd64", Some(level)) if with_variant => format!("linux/amd64 up to v{level}"),
        ("arm64", Some(level)) if with_variant => format!("linux/arm64 up to v{}.{}", level / 10, level % 10),
        _ => format!("linux/{architecture}"),
    }
}

/// The levels of <https://gitlab.com/x86-psABIs/x86-64-ABI>, by CPUID and by the register state
/// that the kernel saves.
#[cfg(target_arch = "x86_64")]
fn detected() -> Vec<u32> {
    use std::arch::is_x86_feature_detected as has;
    let v2 = has!("cmpxchg16b") && has!("popcnt") && has!("sse3") && has!("ssse3") && has!("sse4.1") && has!("sse4.2");
    let v3 = v2
        && (has!("avx") && has!("avx2") && has!("f16c") && has!("fma"))
        && (has!("bmi1") && has!("bmi2") && has!("lzcnt") && has!("movbe"));
    let v4 = v3 && (has!("avx512f") && has!("avx512bw") && has!("avx512cd") && has!("avx512dq") && has!("avx512vl"));
    (1..=1 + u32::from(v2) + u32::from(v3) + u32::from(v4)).collect()
}

/// The versions of the architecture whose mandatory features that programs can see are all there.
#[cfg(target_arch = "aarch64")]
fn detected() -> Vec<u32> {
    use std::arch::is_aarch64_feature_detected as has;
    let v81 = has!("crc") && has!("lse") && has!("rdm");
    let v82 = v81 && has!("dpb");
    let v83 = v82 && has!("fcma") && has!("jsconv") && has!("paca") && has!("rcpc");
    let v84 = v83 && has!("dotprod") && has!("flagm") && has!("lse2") && has!("rcpc2");
    let v85 = v84 && has!("bti") && has!("frintts") && has!("sb") && has!("ssbs");
    let minor = [v81, v82, v83, v84, v85].into_iter().map(u32::from).sum::<u32>();
    let mut levels: Vec<u32> = (80..=80 + minor).collect();
    levels.extend((v85 && has!("sve2")).then_some(90));
    levels
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn detected() -> Vec<u32> {
    vec![0]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(machine: &Machine, architecture: &str, variant: &str) -> Option<u32> {
        Platform::new(Some("linux"), Some(architecture), Some(variant)).rank_on(machine)
    }

    #[test]
    fn a_machine_runs_the_variants_up_to_its_own_and_no_unknown_one() {
        let v3 = Machine { architecture: "amd64", levels: vec![1, 2, 3] };
        for (variant, expected) in [
            ("", Some(1)),
            ("v1", Some(1)),
            ("V2", Some(2)),
            ("2", Some(2)),
            ("v3", Some(3)),
            ("x86-64-v3", Some(3)),
            ("v4", None),
            ("v9", None),
            ("v10", None),
            ("v0", None),
            ("v-1", None),
            ("haswell", None),
        ] {
            assert_eq!(rank(&v3, "amd64", variant), expected, "{variant}");
        }
        assert_eq!(rank(&v3, "x86_64", "v1"), Some(1));
        assert_eq!(rank(&v3, "arm64", ""), None);
        assert_eq!(rank(&v3, "386", ""), None);
        assert_eq!(Platform::new(Some("windows"), Some("amd64"), None).rank_on(&v3), None);
        assert_eq!(Platform::default().rank_on(&v3), Some(1));

        let neoverse = Machine { architecture: "arm64", levels: vec![80, 81, 82] };
        for (variant, expected) in [
            ("", Some(80)),
            ("v8", Some(80)),
            ("8", Some(80)),
            ("v8.2", Some(82)),
            ("v8.5", None),
            ("v9", None),
            ("v7", None),
        ] {
            assert_eq!(rank(&neoverse, "aarch64", variant), expected, "{variant}");
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_level_is_what_the_kernel_says_of_the_processor() {
        let text = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let flags: Vec<&str> =
            text.lines().find(|line| line.starts_with("flags")).unwrap().split_whitespace().collect();
        let has = |names: &str| names.split(' ').all(|name| flags.contains(&name));
        let v2 = has("cx16 popcnt pni ssse3 sse4_1 sse4_2");
        let v3 = v2 && has("avx avx2 bmi1 bmi2 f16c fma abm movbe");
        let v4 = v3 && has("avx512f avx512bw avx512cd avx512dq avx512vl");
        let level = 1 + u32::from(v2) + u32::from(v3) + u32::from(v4);
        assert_eq!(Machine::this().levels, (1..=level).collect::<Vec<_>>());
    }
}
