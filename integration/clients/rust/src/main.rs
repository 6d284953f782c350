//! Every file of a bank with ndarray-npy.
use std::{env, error::Error, fs, fs::File, path::Path};

use ndarray::ArrayD;
use ndarray_npy::{ReadNpyError, ReadNpyExt};

/// report says what one file holds, if its values are of the type.
macro_rules! report {
    ($type:ty, $dtype:literal, $path:expr, $name:expr, $out:expr) => {
        match ArrayD::<$type>::read_npy(File::open($path)?) {
            Err(ReadNpyError::WrongDescriptor(_)) => {}
            Err(e) => return Err(e.into()),
            Ok(a) => {
                let shape: Vec<String> = a.shape().iter().map(usize::to_string).collect();
                let sum = a.iter().fold(0.0, |sum, &v| sum + v as f64);
                println!("{} {} {} {:?}", $name, $dtype, shape.join("x"), sum);
                fs::write($out, a.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())?;
                return Ok(());
            }
        }
    };
}

fn report(path: &Path, name: &str, out: &Path) -> Result<(), Box<dyn Error>> {
    report!(i8, "|i1", path, name, out);
    report!(i16, "<i2", path, name, out);
    report!(i32, "<i4", path, name, out);
    report!(i64, "<i8", path, name, out);
    report!(f32, "<f4", path, name, out);
    report!(f64, "<f8", path, name, out);
    Err(format!("{name}: no type fits").into())
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().collect();
    let (mount, out) = (Path::new(&args[1]), Path::new(&args[2]));
    for bank in &args[3..] {
        fs::create_dir_all(out.join(bank))?;
        for file in fs::read_dir(mount.join(bank))? {
            let path = file?.path();
            if path.extension().is_some_and(|e| e == "npy") {
                let stem = path.file_stem().unwrap();
                report(&path, &format!("{bank}/{}.npy", stem.to_str().unwrap()), &out.join(bank).join(stem))?;
            }
        }
    }
    Ok(())
}
