"""A project of Django with five models and the admin site, over the server that the environment names."""

import os

SECRET_KEY = "only-in-tests"
USE_TZ = True
TIME_ZONE = "Europe/Berlin"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.admin",
    "shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
_PROCESSORS = ("template.context_processors.request", "contrib.auth.context_processors.auth")
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                *(f"django.{name}" for name in _PROCESSORS),
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": os.environ["SHOP_HOST"],
        "PORT": os.environ["SHOP_PORT"],
        "USER": os.environ["SHOP_USER"],
        "PASSWORD": os.environ.get("SHOP_PASSWORD", ""),
        "NAME": os.environ["SHOP_NAME"],
        "OPTIONS": {"options": os.environ.get("SHOP_OPTIONS", "")},
    }
}
