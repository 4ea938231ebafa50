//! Validity of certificates.

use std::path::Path;

use x509_cert::Certificate;
use x509_cert::der::Decode as _;

use super::tls::{TlsError, certificates, file_error};

/// Returns when the first certificate of a PEM file ends to be valid, in seconds since 1970.
///
/// # Errors
/// Returns [`TlsError`], which names the file.
pub fn first_not_after(path: &Path) -> Result<u64, TlsError> {
    const WHAT: &str = "certificate";
    let ends = certificates(WHAT, path)?.into_iter().map(|der| {
        let certificate = Certificate::from_der(&der).map_err(|error| file_error(WHAT, path, error))?;
        Ok(certificate.tbs_certificate().validity().not_after.to_unix_duration().as_secs())
    });
    let ends: Vec<u64> = ends.collect::<Result<_, TlsError>>()?;
    Ok(ends.into_iter().min().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_first_end_of_a_chain_counts() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("chain.pem");
        let of_year = |year| {
            let key = rcgen::KeyPair::generate().unwrap();
            let mut params = rcgen::CertificateParams::new(["a.test".to_owned()]).unwrap();
            params.not_after = rcgen::date_time_ymd(year, 1, 1);
            params.self_signed(&key).unwrap().pem()
        };
        fs::write(&file, of_year(2040) + &of_year(2030) + &of_year(2060)).unwrap();
        assert_eq!(first_not_after(&file).unwrap(), 1_893_456_000);
        fs::write(&file, "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n").unwrap();
        assert!(first_not_after(&file).unwrap_err().to_string().contains("chain.pem: "));
    }
}
