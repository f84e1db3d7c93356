//! A server that is too old for the module: the log has one line about it, and nothing else
//! happens.
//!
//! There is no such server on a machine of today. What the module sees of one is a table of
//! functions in which the newer ones are missing, and that is made here: this process stands in for
//! the server, and loads the module.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::Mutex;

use redislock_testkit::module_path;

// SAFETY: as the C library declares it.
unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn malloc(size: usize) -> *mut c_void;
    fn calloc(count: usize, size: usize) -> *mut c_void;
    fn realloc(memory: *mut c_void, size: usize) -> *mut c_void;
    fn free(memory: *mut c_void);
}

const RTLD_NOW: c_int = 2;
const OK: c_int = 0;
const ERR: c_int = 1;

/// What was logged, and which functions were asked for.
static LOGGED: Mutex<Vec<String>> = Mutex::new(Vec::new());
static ASKED: Mutex<Vec<String>> = Mutex::new(Vec::new());

extern "C" fn log(_: *mut c_void, level: *const c_char, _: *const c_char, text: *const c_char) {
    // SAFETY: the module logs with the format %s, so both are C strings that live during the call.
    let [level, text] = unsafe { [CStr::from_ptr(level), CStr::from_ptr(text)] };
    let line = format!("{} {}", level.to_string_lossy(), text.to_string_lossy());
    LOGGED.lock().expect("no panic").push(line);
}

extern "C" fn set_attributes(_: *mut c_void, _: *const c_char, _: c_int, _: c_int) {}

/// What every server since 4.0 has; of what came later nothing.
extern "C" fn get_api(name: *const c_char, place: *mut *mut c_void) -> c_int {
    // SAFETY: the module asks with a C string.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    ASKED.lock().expect("no panic").push(name.to_string());
    let function = match &*name {
        "RedisModule_Alloc" => malloc as *mut c_void,
        "RedisModule_Calloc" => calloc as *mut c_void,
        "RedisModule_Realloc" => realloc as *mut c_void,
        "RedisModule_Free" => free as *mut c_void,
        "RedisModule_Log" => log as *mut c_void,
        "RedisModule_SetModuleAttribs" => set_attributes as *mut c_void,
        _ => return ERR,
    };
    // SAFETY: the module asks with a place for a pointer.
    unsafe { *place = function };
    OK
}

#[test]
fn a_server_that_is_too_old_logs_one_line() {
    let path = module_path().into_os_string().into_encoded_bytes();
    let path = CString::new(path).expect("a path");
    // A context begins with the function that gives out all others.
    let mut context = [get_api as *mut c_void, std::ptr::null_mut()];
    // SAFETY: the module's library and its one entry, called as a server calls it; the context
    // outlives the call.
    let outcome = unsafe {
        let library = dlopen(path.as_ptr(), RTLD_NOW);
        assert!(!library.is_null(), "the module can be opened");
        let entry = dlsym(library, c"RedisModule_OnLoad".as_ptr());
        assert!(!entry.is_null(), "the module has an entry");
        type Entry = extern "C" fn(*mut c_void, *mut *mut c_void, c_int) -> c_int;
        let entry = std::mem::transmute::<*mut c_void, Entry>(entry);
        entry(context.as_mut_ptr().cast(), std::ptr::null_mut(), 0)
    };
    assert_eq!(outcome, ERR);
    let asked = ASKED.lock().expect("no panic");
    assert!(asked.iter().any(|name| name.contains("NumericConfig")));
    let logged = LOGGED.lock().expect("no panic");
    let [line] = &logged[..] else {
        panic!("{logged:?}")
    };
    assert!(line.starts_with("warning "), "{line}");
    assert!(line.contains("too old"), "{line}");
    assert!(line.contains("Redis 7.0") && line.contains("Valkey 7.2"));
}
