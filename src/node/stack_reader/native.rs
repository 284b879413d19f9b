//! Native frames of threads that sleep in the kernel.
//!
//! The kernel provides the instruction and stack pointers of such a thread
//! (`/proc/PID/task/TID/syscall`); the rest is read from its memory ([`crate::stack_reader::unwind`]). A running
//! thread would have to be stopped to read its registers, and has no native frames here. Function
//! names come from the dynamic symbols of the loaded images, so that static functions have none.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, fs};

use ddp_doctor_proto::report::Where;

use crate::stack_reader::elf::{Functions, Image};
use crate::stack_reader::maps::{FileId, Loaded};
use crate::stack_reader::memory::{Memory, Pages};
use crate::stack_reader::unwind::Registers;

/// Maximum number of frames of a thread.
const MAX_FRAMES: usize = 64;

/// Cache of the functions of files, since ranks load the same files.
#[derive(Debug, Default)]
pub struct FunctionCache(Mutex<HashMap<FileId, Arc<Functions>>>);

impl FunctionCache {
    /// Maximum number of files; a process uses some dozen.
    const MAX_FILES: usize = 256;

    fn get(&self, file: &FileId) -> Option<Arc<Functions>> {
        self.files().get(file).cloned()
    }

    fn put(&self, file: &FileId, functions: &Arc<Functions>) {
        let mut files = self.files();
        if files.len() < Self::MAX_FILES {
            files.insert(file.clone(), Arc::clone(functions));
        }
    }

    fn files(&self) -> MutexGuard<'_, HashMap<FileId, Arc<Functions>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The code of a process.
pub struct Native<'a, M> {
    pages: Pages<'a, M>,
    loaded: &'a [Loaded],
    cache: &'a FunctionCache,
    /// By the index of the loaded file; `None` if it cannot be read.
    images: HashMap<usize, Option<(Image, Arc<Functions>)>>,
}

impl<'a, M: Memory> Native<'a, M> {
    /// The code of a process with this memory and these files.
    pub fn new(memory: &'a M, loaded: &'a [Loaded], cache: &'a FunctionCache) -> Self {
        Self { pages: Pages::new(memory), loaded, cache, images: HashMap::new() }
    }

    /// The frames of a thread, innermost first; none if it runs, or access is denied.
    pub fn frames(&mut self, pid: u32, tid: u32) -> Vec<Where> {
        // The unwinder knows the registers of these architectures.
        if cfg!(not(any(target_arch = "x86_64", target_arch = "aarch64"))) {
            return Vec::new();
        }
        let file = format!("/proc/{pid}/task/{tid}/syscall");
        let read = || sleeping_at(&fs::read_to_string(&file).ok()?);
        let Some((place, stack)) = read() else {
            return Vec::new();
        };
        let frames = self.walk(place, stack);
        // If the thread has moved meanwhile, the frames are inconsistent.
        if read() == Some((place, stack)) { frames } else { Vec::new() }
    }

    fn walk(&mut self, place: u64, stack: u64) -> Vec<Where> {
        let mut frames = Vec::new();
        let mut registers = Registers::new(place, stack);
        loop {
            let place = registers.place();
            let is_innermost = frames.is_empty();
            let inside = if is_innermost { place } else { place.wrapping_sub(1) };
            let Some((index, file)) = self.file(inside) else {
                break;
            };
            let Some((image, functions)) = self.image(index).cloned() else {
                break;
            };
            let function =
                image.name(&mut self.pages, &functions, inside).map(|name| readable(&name));
            frames.push(Where {
                file,
                line: 0,
                function: function.unwrap_or_default(),
                ..Where::default()
            });
            if frames.len() == MAX_FRAMES {
                break;
            }
            let caller =
                image.unwind.map(|table| registers.caller(&mut self.pages, table, is_innermost));
            match caller {
                Some(Ok(Some(caller))) => registers = caller,
                _ => break,
            }
        }
        frames
    }

    /// Index and path of the loaded file that contains an address.
    fn file(&self, address: u64) -> Option<(usize, String)> {
        let index = self.loaded.partition_point(|it| it.start <= address).checked_sub(1)?;
        let loaded = &self.loaded[index];
        (address < loaded.end).then(|| (index, loaded.path.clone()))
    }

    fn image(&mut self, index: usize) -> Option<&(Image, Arc<Functions>)> {
        let Self { pages, loaded, cache, images } = self;
        let image = images.entry(index).or_insert_with(|| {
            let file = &loaded[index].id;
            let image = Image::at(pages, loaded[index].start).ok()?;
            let functions = cache.get(file).unwrap_or_else(|| {
                // Without names the frames still show files.
                let functions = Arc::new(image.functions(pages).unwrap_or_default());
                cache.put(file, &functions);
                functions
            });
            Some((image, functions))
        });
        image.as_ref()
    }
}

/// Instruction and stack pointers from `number arguments… stack place` or `-1 stack place`; `None`
/// for `running`.
fn sleeping_at(text: &str) -> Option<(u64, u64)> {
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let [_, .., stack, place] = words[..] else {
        return None;
    };
    let number = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    Some((number(place)?, number(stack)?))
}

/// Demangles a symbol, without parameters and return type; other symbols are returned unchanged.
pub(crate) fn readable(symbol: &str) -> String {
    /// Maximum length of a symbol that is demangled, since templates can be very long.
    const MAX_SYMBOL_CHARS: usize = 2048;
    let demangled = || {
        if !symbol.starts_with("_Z") || symbol.len() > MAX_SYMBOL_CHARS {
            return None;
        }
        let options = cpp_demangle::DemangleOptions::new().no_params().no_return_type();
        let mut name = ReadableName(String::new());
        let symbol = cpp_demangle::Symbol::new(symbol).ok()?;
        symbol.structured_demangle(&mut name, &options).ok()?;
        Some(name.0)
    };
    demangled().unwrap_or_else(|| symbol.to_owned())
}

/// A name that is not written to its end if it is too long: each substitution of a symbol can double it.
struct ReadableName(String);

impl ReadableName {
    /// Maximum length in bytes.
    const MAX: usize = 16 << 10;
}

impl cpp_demangle::DemangleWrite for ReadableName {
    fn write_string(&mut self, part: &str) -> fmt::Result {
        if self.0.len() + part.len() > Self::MAX {
            return Err(fmt::Error);
        }
        self.0.push_str(part);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::stack_reader::maps::images;
    use crate::stack_reader::memory::ProcessMemory;

    #[test]
    fn only_sleeping_threads_have_registers() {
        let asleep =
            "230 0x0 0x0 0x7ffe76aca250 0x7ffe76aca290 0x0 0x0 0x7ffe76aca238 0x7f5a93abd503\n";
        assert_eq!(sleeping_at(asleep), Some((0x7f5a_93ab_d503, 0x7ffe_76ac_a238)));
        assert_eq!(sleeping_at("-1 0x10 0x20"), Some((0x20, 0x10)));
        for other in ["running\n", "", "7", "1 2 3"] {
            assert_eq!(sleeping_at(other), None, "{other}");
        }
    }

    #[test]
    fn name_that_grows_with_each_substitution_stays_mangled() {
        // a<int>, b<a<int> × 30>, b<that × 30> and so on: S2_ is the template b, S3_ the type before.
        let mut arguments = format!("1aIiE1bI{}E", "S1_".repeat(30));
        for type_before in ["S3_", "S4_"] {
            arguments += &format!("S2_I{}E", type_before.repeat(30));
        }
        let short = format!("_Z1gI{}Evv", &arguments[..5]);
        assert_eq!(readable(&short), "g<a<int> >");
        let bomb = format!("_Z1gI{arguments}Evv");
        assert_eq!(readable(&bomb), bomb);
    }

    /// The frames of the main thread of a program, once it sleeps. They are read for at most a minute.
    fn frames_asleep(program: &mut Command) -> Vec<Where> {
        let mut program = program.spawn().unwrap();
        let pid = program.id();
        let deadline = Instant::now() + Duration::from_secs(60);
        let frames = loop {
            let memory = ProcessMemory::open(pid).unwrap();
            let loaded = images(pid).unwrap();
            let cache = FunctionCache::default();
            let frames = Native::new(&memory, &loaded, &cache).frames(pid, pid);
            // From glibc 2.41 on, frames without names are inside of it.
            let is_asleep = frames.iter().any(|it| it.function.contains("nanosleep"));
            if is_asleep || Instant::now() > deadline {
                break frames;
            }
            std::thread::yield_now();
        };
        program.kill().unwrap();
        program.wait().unwrap();
        frames
    }

    #[test]
    fn sleeping_program_is_unwound_to_its_start() {
        let frames = frames_asleep(Command::new("sleep").arg("600"));
        let names: Vec<&str> = frames.iter().map(|it| it.function.as_str()).collect();
        assert!(names.contains(&"__libc_start_main"), "{frames:#?}");
        assert!(frames.last().unwrap().file.ends_with("/sleep"), "{frames:#?}");
    }

    /// `middle` addresses its frame by the frame pointer, since the size of its stack is not constant.
    #[cfg(target_arch = "aarch64")]
    const DEEP: &str = r"
        #include <alloca.h>
        #include <string.h>
        #include <unistd.h>
        #define NOINLINE __attribute__((noinline))
        NOINLINE int inner(char *room) { return (int)sleep(600) + room[0]; }
        NOINLINE int middle(unsigned size) {
            char *room = alloca(size);
            memset(room, 1, size);
            return inner(room) + room[size / 2];
        }
        NOINLINE int outer(unsigned size) { return middle(2 * size) + 1; }
        int main(int argc, char **argv) { return outer(100 * (unsigned)argc) + argv[0][0]; }
    ";

    #[cfg(target_arch = "aarch64")]
    #[test]
    fn signed_return_addresses_and_frame_pointers_are_unwound() {
        let scratch = tempfile::tempdir().unwrap();
        let [source, program] = ["deep.c", "deep"].map(|it| scratch.path().join(it));
        fs::write(&source, DEEP).unwrap();
        for options in [
            ["-fno-omit-frame-pointer", "-mbranch-protection=none"],
            ["-fno-omit-frame-pointer", "-mbranch-protection=standard"],
            ["-fomit-frame-pointer", "-mbranch-protection=pac-ret+leaf"],
        ] {
            let mut compiler = Command::new("gcc");
            compiler.args(["-O1", "-rdynamic"]).args(options).arg(&source).arg("-o").arg(&program);
            let Ok(compiled) = compiler.status() else {
                eprintln!("skipped: there is no gcc");
                return;
            };
            assert!(compiled.success());
            let frames = frames_asleep(&mut Command::new(&program));
            let names: Vec<&str> = frames.iter().map(|it| it.function.as_str()).collect();
            let own = names.iter().position(|it| *it == "inner").map(|at| &names[at..]);
            let calls = ["inner", "middle", "outer", "main"];
            assert!(own.is_some_and(|own| own.starts_with(&calls)), "{options:?}: {frames:#?}");
            assert!(names.contains(&"__libc_start_main"), "{options:?}: {frames:#?}");
        }
    }

    #[test]
    fn cpp_names_are_demangled() {
        let name = "_ZN4c10d16ProcessGroupGloo9AsyncWork4waitENSt6chrono8durationIlSt5ratioILl1ELl1000EEEE";
        assert_eq!(readable(name), "c10d::ProcessGroupGloo::AsyncWork::wait");
        assert_eq!(readable("pthread_cond_wait"), "pthread_cond_wait");
        assert_eq!(readable("_Znonsense"), "_Znonsense");
    }
}
