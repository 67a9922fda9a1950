#!/bin/sh
# Creates deploy/certificate for compose.yaml, unless it exists: a self-signed certificate for the name localhost, passwords of
# the users ann (SUPERUSER) and prometheus (reader), and users.sql, which creates both. WATERSMEET is the command.
set -eu
cd "$(dirname "$0")"
watersmeet=${WATERSMEET:-../.venv/bin/watersmeet}
mkdir certificate
openssl req -x509 -newkey rsa:2048 -nodes -days 365 -subj /CN=localhost -addext "subjectAltName=DNS:localhost,DNS:watersmeet" \
  -keyout certificate/server.key -out certificate/server.pem 2>/dev/null
for user in ann prometheus; do
  openssl rand -hex 16 >certificate/$user-password
done
{
  echo "CREATE USER IF NOT EXISTS ann PASSWORD '$("$watersmeet" password <certificate/ann-password)' SUPERUSER;"
  echo "CREATE USER IF NOT EXISTS prometheus PASSWORD '$("$watersmeet" password <certificate/prometheus-password)' IN ROLE reader;"
} >certificate/users.sql
# The containers read these as users 185 and 65534. Keep the checkout in a directory that other users can't enter.
chmod 644 certificate/*
echo "deploy/certificate is ready: the password of the user ann is in deploy/certificate/ann-password"
