//! The kernels, once in source and once for each instruction set, and the choice between them.
//!
//! Kernels are generic over [`lanes::Simd`] and always inlined into a function that is compiled for one instruction
//! set; [`Kernels`] is the table of those functions. All `unsafe` of the executor is in this folder: intrinsics in the
//! files named after instruction sets, and the calls here.
//!
//! Results are the same bits on every instruction set: all do the same IEEE operations in the same order. That is
//! tested for those of the machine at hand.

mod attention;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod gemm;
mod lanes;
#[cfg(target_arch = "aarch64")]
mod neon;
mod rows;
mod scalar;

use std::fmt;

use super::layout::{Acts, QGroup, Vec16, View};
use super::matrix::Matrix;
use super::pages::Pages;

/// Instruction sets that kernels are compiled for, slowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Plain Rust, whatever the target's baseline is.
    Scalar,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ, VL and VNNI.
    Avx512,
    /// Armv8 with its Advanced SIMD.
    Neon,
}

impl Isa {
    const ALL: [Self; 4] = [Self::Scalar, Self::Avx2, Self::Avx512, Self::Neon];

    /// Whether this CPU has it.
    #[must_use]
    pub fn is_available(self) -> bool {
        self.kernels().is_some()
    }

    /// What this CPU has, slowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|isa| isa.is_available())
    }

    /// The fastest that this CPU has.
    #[must_use]
    pub fn best() -> Self {
        Self::available().last().unwrap_or(Self::Scalar)
    }

    /// The table for this instruction set, where the CPU has it.
    pub(super) fn kernels(self) -> Option<&'static Kernels> {
        match self {
            Self::Scalar => Some(&SCALAR),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => has_avx2().then_some(&AVX2),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => (has_avx2()
                && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vnni"))
            .then_some(&AVX512),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => std::arch::is_aarch64_feature_detected!("neon").then_some(&NEON),
            #[allow(unreachable_patterns)] // which are left depends on the target
            _ => None,
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Neon => "neon",
        })
    }
}

/// Sixteen outputs of `matrix` for all rows of `acts`: written to `out`, or added to it.
pub(super) struct Multiply<'a> {
    pub matrix: &'a Matrix,
    pub tile: usize,
    pub acts: &'a Acts,
    pub out: &'a mut [Vec16],
    pub add: bool,
}

/// RMS norm of one row of `input`.
pub(super) struct Normalise<'a> {
    pub input: View<'a>,
    pub row: usize,
    pub weight: &'a [Vec16],
    pub epsilon: f32,
    pub out: &'a mut [Vec16],
}

/// Quantisation of one row of `input`.
pub(super) struct Quantise<'a> {
    pub input: View<'a>,
    pub row: usize,
    pub out: &'a mut [QGroup],
}

/// Causal attention of consecutive rows, the first at position `first`. `queries` and `out` are
/// `[row][query head of the group][chunk]`.
pub(super) struct Attend<'a> {
    pub pages: Pages<'a>,
    pub first: usize,
    pub group: usize,
    pub queries: &'a [Vec16],
    pub scale: f32,
    pub out: &'a mut [Vec16],
}

/// The kernels of one instruction set. Whoever holds a reference may call them: [`Isa::kernels`] has asked the CPU.
pub(super) struct Kernels {
    pub multiply: fn(Multiply<'_>),
    pub normalise: fn(Normalise<'_>),
    pub quantise: fn(Quantise<'_>),
    /// gate ← silu(gate) × up.
    pub swiglu: fn(&mut [Vec16], &[Vec16]),
    pub attend: fn(Attend<'_>),
    /// `from` to half precision in `to`, sixteen elements a vector.
    pub to_half: fn(&[Vec16], &mut [u16]),
}

/// Compiles every kernel for one instruction set.
macro_rules! kernels {
    ($table:ident, $simd:expr $(, $features:literal)?) => {
        static $table: Kernels = Kernels {
            multiply: kernels!(@one $simd, [$($features)?], gemm::multiply(job: Multiply<'_>)),
            normalise: kernels!(@one $simd, [$($features)?], rows::normalise(job: Normalise<'_>)),
            quantise: kernels!(@one $simd, [$($features)?], rows::quantise(job: Quantise<'_>)),
            swiglu: kernels!(@one $simd, [$($features)?], rows::swiglu(gate: &mut [Vec16], up: &[Vec16])),
            attend: kernels!(@one $simd, [$($features)?], attention::attend(job: Attend<'_>)),
            to_half: kernels!(@one $simd, [$($features)?], rows::to_half(from: &[Vec16], to: &mut [u16])),
        };
    };
    (@one $simd:expr, [$($features:literal)?], $module:ident::$name:ident($($arg:ident: $type:ty),*)) => {{
        $(#[target_feature(enable = $features)])?
        fn compiled($($arg: $type),*) {
            // SAFETY: the function is compiled for the features whose presence is claimed, and called as below.
            #[allow(unused_unsafe)]
            $module::$name(unsafe { $simd }, $($arg),*);
        }
        fn checked($($arg: $type),*) {
            // SAFETY: this table leaves the module only through `Isa::kernels`, after the CPU said it has the features.
            #[allow(unused_unsafe)]
            unsafe { compiled($($arg),*) }
        }
        checked
    }};
}

kernels!(SCALAR, scalar::Scalar);
#[cfg(target_arch = "x86_64")]
kernels!(AVX2, avx2::Avx2::assume(), "avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
kernels!(AVX512, avx512::Avx512::assume(), "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni");
#[cfg(target_arch = "aarch64")]
kernels!(NEON, neon::Neon::assume(), "neon");
