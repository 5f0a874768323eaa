//! The C library's own functions, behind the ones of the same names here.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function that is looked up at the start, or when it is called first.
pub(crate) struct Real {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Real {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            found: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// Its address. Ends the process if the C library has no such function: nothing can have called it then.
    #[inline]
    pub(crate) fn address(&self) -> *mut c_void {
        // Relaxed: whoever looks it up finds the same.
        let found = self.found.load(Ordering::Relaxed);
        if found.is_null() { self.look_up() } else { found }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        let found = self.try_look_up();
        if found.is_null() {
            std::process::abort();
        }
        found
    }

    fn try_look_up(&self) -> *mut c_void {
        // SAFETY: a string that ends in NUL.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

// Names that the linker gives the ends of a section.
unsafe extern "C" {
    #[link_name = "__start_homenode_reals"]
    static FIRST: u8;
    #[link_name = "__stop_homenode_reals"]
    static END: u8;
}

/// Looks all functions up that the C library has: later, that would wait for a dlopen(3) under way, and forget what dlerror(3) is to tell.
pub(crate) fn look_all_up() {
    let first = (&raw const FIRST).cast::<&'static Real>();
    let end: *const &'static Real = (&raw const END).cast();
    // SAFETY: both are ends of the section.
    let count = unsafe { end.offset_from_unsigned(first) };
    // SAFETY: the section has nothing but such references.
    for real in unsafe { std::slice::from_raw_parts(first, count) } {
        real.try_look_up();
    }
}

/// Calls the C library's function of a name, with the types of the arguments and of the result.
macro_rules! real {
    ($name:ident($($argument:expr => $kind:ty),*) $(-> $result:ty)?) => {{
        const NAME: &std::ffi::CStr = match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => panic!("a function's name has no NUL"),
        };
        static REAL: $crate::real::Real = $crate::real::Real::new(NAME);
        #[used]
        #[unsafe(link_section = "homenode_reals")]
        static LISTED: &$crate::real::Real = &REAL;
        // SAFETY: the C library's function of that name has this type.
        let function = unsafe {
            std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($kind),*) $(-> $result)?>(REAL.address())
        };
        // SAFETY: the caller's.
        unsafe { function($($argument),*) }
    }};
}

pub(crate) use real;

/// Other names of functions here.
macro_rules! alias {
    ($($name:ident = $of:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {$(
        #[doc = concat!("[`", stringify!($of), "`] by another name.")]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
            // SAFETY: the caller's.
            unsafe { $of($($argument),*) }
        }
    )*};
}

pub(crate) use alias;
