"""The pages of the admin site."""

from django.contrib import admin

from shop import models


class Lines(admin.TabularInline):
    model = models.Line


@admin.register(models.Order)
class Orders(admin.ModelAdmin):
    list_display = ["id", "customer", "status", "placed"]
    list_filter = ["status", "placed"]
    list_select_related = ["customer"]
    search_fields = ["customer__name", "remark"]
    date_hierarchy = "placed"
    inlines = [Lines]


admin.site.register([models.Customer, models.Label, models.Product])
